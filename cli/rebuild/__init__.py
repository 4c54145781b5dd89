"""``bmq cluster rebuild``: the metadata store rebuilt from storage."""
