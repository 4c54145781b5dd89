"""One driver a client library: the same few operations, so that one story tests them all."""
