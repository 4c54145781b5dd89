"""The command line of ``bmq segment repair``, and its work without a server."""
