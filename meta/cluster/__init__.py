"""Membership of the cluster, the assignment of partitions and shards, and each process's view of both."""
