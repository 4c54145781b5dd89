"""Brokers that this proxy cannot reach, and its reports of them."""
