"""The HTTP port of a process: health, metrics, the REST API and the console's web page."""
