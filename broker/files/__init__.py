"""Open files of a broker: segments, spares, journals, flushes, and the health of their datanodes."""
