"""Pieces of asyncio that the standard library lacks: eager tasks, turns of the loop, bounds, subscribers."""
