"""Principals of clients, sessions of connections, and what authentication is made of."""
