"""The floor that every other package stands on: shared types, settings, sockets and wire formats.

It imports no other package of BMQ.
"""
