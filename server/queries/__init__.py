"""What a process answers to operators: of itself, and of the whole cluster, asked of each member."""
