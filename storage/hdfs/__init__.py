"""HDFS: what no library does (hflush pipelines, takeover, open-block reads), and the seam over it."""

from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.webhdfs import WebHdfsFileSystem

__all__ = ["HdfsFileSystem", "HdfsSettings", "WebHdfsFileSystem"]
