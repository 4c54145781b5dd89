"""One partition and its owner: the pure state machine, and the driver that performs its effects."""
