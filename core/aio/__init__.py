"""Additions to asyncio: eager tasks, turns of the loop, bounds, time-outs, subscribers."""
