"""The proxy: the Kafka endpoint (from part 2 on)."""
