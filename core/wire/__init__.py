"""Kafka's messages: Produce and Fetch by hand, all others from schemas."""
