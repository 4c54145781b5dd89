"""The commands of ``bmq cluster``."""
