"""Committed offsets, and the lag that they show."""
