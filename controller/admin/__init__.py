"""Admin requests: topics, partitions, configs, and operators' acts."""
