"""``KeyValue`` on etcd v3, for a cluster: see docs/design/key-value.md."""
