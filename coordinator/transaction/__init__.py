"""Transactions of one transactional id: their states, and their records.  Pure."""
