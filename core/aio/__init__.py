"""Additions to asyncio, and bounds: tasks, waiters, timers, turns of the loop, budgets, caches, back-off, callbacks."""
