"""Reading of slices into record batches, on executors."""
