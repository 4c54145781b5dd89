"""Connections to a member through another one."""
