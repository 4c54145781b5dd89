"""The routing of group requests to the coordinators that have the groups."""
