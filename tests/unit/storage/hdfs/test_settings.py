"""The bounds of the HDFS client's settings."""

from dataclasses import replace

import pytest

from bmq.storage.hdfs.settings import HdfsSettings


def test_settings_out_of_range_name_the_setting() -> None:
    HdfsSettings().validate()
    for change in ({"packet_bytes": 16 << 20}, {"window_bytes": 1}, {"call_deadline_s": 1.0}, {"heartbeat_s": 45.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(HdfsSettings(), **change).validate()
