"""Shards of transactions: their state, the decisions on it, and the markers that end transactions."""
