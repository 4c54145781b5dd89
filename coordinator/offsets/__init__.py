"""Committed offsets, and the lag that is counted from them."""
