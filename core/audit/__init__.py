"""The audit log: who did what to which resource, from where, allowed or denied, as JSON lines."""
