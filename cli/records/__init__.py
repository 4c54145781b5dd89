"""``bmq produce`` and ``bmq consume``: records as text."""
