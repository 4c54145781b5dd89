"""The error for bytes in a segment that are not what they should be.

Apart from what finds it, so that whoever reads no records does not load the decoder.
"""

from __future__ import annotations


class CorruptSegment(Exception):
    """Bytes in a segment are not what they should be.

    ``where`` is the file; ``position`` the batch's first byte in it; ``offset`` the batch's base offset, or the one due
    there when no header can be believed, -1 when unknown.
    """

    def __init__(self, where: str, position: int, offset: int, fault: str) -> None:
        super().__init__(where, position, offset, fault)
        self.where = where
        self.position = position
        self.offset = offset
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.where}: at {self.position}, offset {self.offset}: {self.fault}"
