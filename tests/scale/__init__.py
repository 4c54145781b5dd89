"""A controller with a million partitions: `make scale`."""
