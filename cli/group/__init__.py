"""``bmq group``: its commands."""
