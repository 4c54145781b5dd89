"""The controller: topics, configs, assignment."""
