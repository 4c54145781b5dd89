"""Counters of the hot path, and numbers that are collected between scrapes."""
