"""What the endpoint answers: a file for each API, or for each small family."""
