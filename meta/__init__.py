"""The cluster's metadata: the key-value interface, its adapters, and the records kept there."""
