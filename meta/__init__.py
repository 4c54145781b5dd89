"""Who owns what: the key-value seam and its adapters."""
