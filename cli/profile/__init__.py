"""The command ``bmq profile``, and the file of profiles."""
