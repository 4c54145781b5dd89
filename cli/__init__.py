"""The bmq command."""
