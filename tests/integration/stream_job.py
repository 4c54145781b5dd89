"""A streaming job as a process of its own, to be killed: a topic into a Parquet table, 400 records at a time."""

from __future__ import annotations

import sys

from tests.services.spark import start_spark


def main(root: str, topic: str, table: str, checkpoint: str) -> None:
    stream = start_spark().readStream.format("bmq").option("root", root).option("topic", topic)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "400")
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.start(table).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
