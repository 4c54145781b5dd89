"""Answers to operators: of this process, and of the whole cluster by a request to each member."""
