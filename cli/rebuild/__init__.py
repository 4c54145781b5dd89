"""Rebuilding the metadata store from storage, for ``bmq cluster rebuild``."""
