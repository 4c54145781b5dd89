"""Transactions of client libraries behind one interface."""
