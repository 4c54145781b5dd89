"""The handlers of clients' requests: a file for each API, or for each small family."""
