"""Kafka's framing over sockets: listeners, client connections, and connections between the cluster's processes."""
