"""Planning of a read: from a topic's files to slices that tasks read.  Pure but for listing and reading indexes."""
