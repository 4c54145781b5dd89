"""The group APIs of Kafka: membership, offsets, and administration, over the shards that this process serves."""
