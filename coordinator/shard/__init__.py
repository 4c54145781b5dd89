"""One shard of all groups: its log, the replay of it, and the state in memory."""
