"""Versions and protections of HDFS under which BMQ was tried: one short story each, and the table of their ends."""
