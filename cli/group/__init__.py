"""The commands of ``bmq group``."""
