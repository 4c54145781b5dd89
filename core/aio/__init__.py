"""Additions to asyncio, and bounds: eager tasks, turns of the loop, budgets, caches, time-outs, subscribers."""
