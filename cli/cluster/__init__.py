"""``bmq cluster``: its commands."""
