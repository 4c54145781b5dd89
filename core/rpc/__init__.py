"""Calls between the cluster's processes, over the internal protocol."""
