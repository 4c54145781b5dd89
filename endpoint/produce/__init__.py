"""The Produce API: handler, order of a connection's requests, and queue of batches that wait for their partition."""
