"""One partition and its owner: the pure state machine, and the shell that performs its effects."""
