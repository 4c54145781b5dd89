"""The broker: owns partitions and writes their logs."""
