"""The routing of requests to the coordinators that serve the shards of their keys, for all kinds of shards."""
