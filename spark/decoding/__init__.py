"""Record batches to Arrow: the decoder and its compiled kernels."""
