"""HTTP: health, metrics, REST and the web page (from part 2 on)."""
