"""``bmq segment repair``: its command line."""
