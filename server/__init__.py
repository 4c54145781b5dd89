"""One process of `bmq serve`: its roles wired together."""
