"""The planner: the choice of every partition's owner.  Pure."""
