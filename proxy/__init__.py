"""The proxy: the Kafka endpoint that clients connect to."""
