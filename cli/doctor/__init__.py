"""``bmq cluster doctor``: facts gathered, findings, remedies."""
