"""From a topic's files to slices that tasks read. Pure but for listing."""
