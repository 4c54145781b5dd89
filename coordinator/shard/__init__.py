"""One shard of the groups: its log, its replay, and the state in memory."""
