"""The coordinator: groups and their offsets."""
