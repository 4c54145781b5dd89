"""The Fetch API: handler, sessions, purgatory, tail cache, and memory budget."""
