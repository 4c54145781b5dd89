"""Group requests on their way to the coordinator that has the group."""
