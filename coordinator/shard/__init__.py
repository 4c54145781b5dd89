"""The log of a shard of any kind, its replay, and the service of its state from memory."""
