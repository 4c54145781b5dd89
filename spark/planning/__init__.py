"""Planning of a read: from a topic's files to slices that tasks read.  Pure except for listing and reading indexes."""
