"""Authorisation: the acts that a client may do to a resource, decided as by Kafka's authorizer."""
