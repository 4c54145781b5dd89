"""``bmq segment``: its commands."""
