"""The error for bytes in a segment that are not what they should be.

It stands apart from the code that raises it, so a process without reads of records does not load the decoder.
"""

from __future__ import annotations


class CorruptSegment(Exception):
    """Bytes in a segment are not what they should be.

    ``where`` is the file; ``position`` the batch's first byte in it; ``offset`` the batch's base offset, or the one due
    there if no header can be trusted, -1 if unknown.
    """

    def __init__(self, where: str, position: int, offset: int, fault: str) -> None:
        super().__init__(where, position, offset, fault)
        self.where = where
        self.position = position
        self.offset = offset
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.where}: at {self.position}, offset {self.offset}: {self.fault}"
