"""The proxy's side of a cluster: partitions whose owners are other processes."""
