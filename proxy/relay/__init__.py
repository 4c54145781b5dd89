"""Connections to a broker through another process, a relay, while there is no direct one."""
