"""The adapter for a local folder: ``file:///dir`` roots."""
