"""The planner: which broker is to own which partition. Pure."""
