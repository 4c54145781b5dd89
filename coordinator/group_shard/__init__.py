"""Shards of groups: their state, and the decisions on it."""
