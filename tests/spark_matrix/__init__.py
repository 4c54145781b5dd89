"""Versions of PySpark on which Spark's tests were run, and the table of their ends."""
