"""One process of ``bmq serve``, with its roles wired together."""
