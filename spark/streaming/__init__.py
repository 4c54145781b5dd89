"""Streaming queries: offsets, limits, and micro-batches."""
