"""Open files of a broker: segments, spares, journals and their flushes, and the health of their datanodes."""
