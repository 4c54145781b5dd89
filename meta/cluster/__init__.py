"""Who is in the cluster and who is to own what: membership, assignment, and everybody's view of both."""
