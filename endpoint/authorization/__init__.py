"""Authorisation: which client may do what to which resource, as Kafka's authorizer answers."""
