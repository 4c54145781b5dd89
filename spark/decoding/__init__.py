"""Decoding of record batches into Arrow: the decoder and its compiled kernels."""
