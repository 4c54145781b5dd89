"""The sink of Spark queries, an idempotent producer."""
