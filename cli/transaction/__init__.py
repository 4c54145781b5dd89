"""``bmq transaction``: transactions of a running cluster, and those that no coordinator ends."""
