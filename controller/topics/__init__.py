"""Topics in the metadata store: creation, change, and deletion with their files."""
