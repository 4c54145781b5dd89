"""Upkeep of owned partitions: retention, orphaned files, and merging of small segments."""
