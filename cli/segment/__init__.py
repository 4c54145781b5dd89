"""The commands of ``bmq segment``."""
