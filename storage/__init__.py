"""The log on storage: the file systems, segments, journals, recovery and reading."""
