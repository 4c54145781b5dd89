"""Repair of a damaged partition, and the record that storage alone can rebuild."""
