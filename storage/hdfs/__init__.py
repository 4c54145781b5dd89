"""The adapter for HDFS: its client (hflush pipelines, takeover, reads of open blocks) and its ``FileSystem``."""

from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.webhdfs import WebHdfsFileSystem

__all__ = ["HdfsFileSystem", "HdfsSettings", "WebHdfsFileSystem"]
