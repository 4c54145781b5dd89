"""The routing of requests about transactions to the coordinators that have them."""
