"""The records of a round that a later record of the same key replaces.  Pure.

A round walks its batches several times, always all of them in order::

    for each pass:
        dirty batches   ``map_record``     the last offset of each key of the pass
        all batches     ``mark_record``    not if the first pass has all keys
    all batches         ``is_superseded``

Most logs need a single pass.  Then the map itself answers.  With more passes the marks have a bit for
every record, in the order of the walk.  Offsets would need more bits: a cleaned log has few records over many offsets.
"""

from __future__ import annotations

from bmq.storage.cleaning.key_offsets import KeyOffsets


class SupersededRecords:
    """The answer to: does the dirty part of the log have a later record of this record's key?

    A record has a ``number`` besides its offset: how many records the walk passed before it.
    """

    __slots__ = ("_keys", "_marks", "_was_narrowed")

    def __init__(self, keys: KeyOffsets) -> None:
        self._keys = keys
        self._marks = bytearray()
        self._was_narrowed = False

    @property
    def needs_marks(self) -> bool:
        """True if the walks of ``mark_record`` are needed: the map has not all keys at once."""
        return self._was_narrowed or not self._keys.is_last

    @property
    def mark_bytes(self) -> int:
        """Bytes of the marks."""
        return len(self._marks)

    def map_record(self, key: bytes, offset: int) -> None:
        """Take a record of the dirty part into this pass's map."""
        self._keys.put(key, offset)

    def mark_record(self, key: bytes, offset: int, number: int) -> None:
        """Mark the record if this pass's map has a later record of its key."""
        if self._keys.get(key) > offset:
            at, bit = divmod(number, 8)
            if at >= len(self._marks):
                self._marks.extend(bytes(at + 1 - len(self._marks)))
            self._marks[at] |= 1 << bit

    def next_pass(self) -> bool:
        """Begin the next pass.  Return False if each key has had its pass."""
        if self._keys.is_last:
            return False
        self._was_narrowed = True
        self._keys.next_pass()
        return True

    def is_superseded(self, key: bytes, offset: int, number: int) -> bool:
        """Return whether the record has a later record of its key.  Call it behind the last pass."""
        if not self._was_narrowed:
            return self._keys.get(key) > offset
        at, bit = divmod(number, 8)
        return at < len(self._marks) and bool(self._marks[at] >> bit & 1)
