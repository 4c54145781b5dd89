"""HTTP: health, metrics, REST and the web page."""
