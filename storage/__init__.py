"""The log on storage: the file-system seam, segments, journals, recovery and reading."""
