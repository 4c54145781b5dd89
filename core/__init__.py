"""Shared vocabulary; imports nothing of ours."""
