"""Cleaning of compacted logs, as Kafka's log cleaner does it: pure, batches in and batches out."""
