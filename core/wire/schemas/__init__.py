"""Schemas of Kafka's messages, in Kafka's form: kafka-python does not carry them, or lacks a tagged field of ours."""
