"""Events of the audit log that come from Kafka requests: administrative acts."""
