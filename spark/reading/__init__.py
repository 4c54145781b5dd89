"""Slices into record batches, on executors."""
