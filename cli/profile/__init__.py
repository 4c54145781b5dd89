"""``bmq profile``, and the file of profiles."""
