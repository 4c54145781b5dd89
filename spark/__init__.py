"""Spark reads segments straight from storage (from part 4 on)."""
