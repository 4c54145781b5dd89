"""The command lines of ``bmq``: parsers, which load neither a client nor a library of a server."""
