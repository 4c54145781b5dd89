"""Assigned partitions: opening, closing, and handing over."""
