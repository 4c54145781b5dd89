"""Schemas of Kafka's messages that kafka-python does not carry, in the form of Kafka's own."""
