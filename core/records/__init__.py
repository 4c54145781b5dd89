"""Record batches: header, records, compression, and the checks of a produce."""
