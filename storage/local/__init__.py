"""The file system seam over a local folder."""
