"""The Produce API: handler, and the queue of batches that wait for their partition."""
