"""One consumer group: the classic protocol as a pure state machine."""
