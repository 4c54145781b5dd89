"""The map of a pass: the hash of each key, and the key's last offset.  Pure.

An entry is 24 bytes, as in Kafka's ``SkimpyOffsetMap``: 16 of hash, 8 of offset.  The hash is BLAKE2b, not MD5: who
knows two keys with the same hash can remove another writer's record.

Kafka ends a round in the middle of a segment when its map is full.  Here a round ends where a segment ends.  So a full
map gives up its upper half of the hashes, and a later pass takes the keys with these hashes::

    pass 1   hashes [0, c1)      full at c2 > c1 before
    pass 2   hashes [c1, c3)
    pass 3   hashes [c3, end)

Entries lie in shards by the first two bytes of their hash, in no order.  A shard is searched from its first byte on:
slow, and obviously right.
"""

from __future__ import annotations

from hashlib import blake2b

HASH_BYTES = 16
ENTRY_BYTES = HASH_BYTES + 8
SHARDS = 1 << 16
"""Shards of all hashes.  A pass takes one shard at least."""


class KeyOffsets:
    """The last offset of each key whose hash is in this pass's range: at most ``entries_max`` keys.

    The range is the shards [``low``, ``high``).  ``low`` is 0 in the first pass.
    """

    __slots__ = ("_count", "_shards", "entries_max", "high", "low")

    def __init__(self, entries_max: int) -> None:
        if entries_max < 1:
            raise ValueError(f"a map of {entries_max} keys: a pass needs room for one key at least")
        self.entries_max = entries_max
        self.low, self.high = 0, SHARDS
        self._shards: dict[int, bytearray] = {}
        self._count = 0

    @classmethod
    def within(cls, buffer_bytes: int) -> KeyOffsets:
        """Return an empty map for ``log.cleaner.dedupe.buffer.size``."""
        return cls(buffer_bytes // ENTRY_BYTES)

    def __len__(self) -> int:
        return self._count

    @property
    def is_last(self) -> bool:
        """True if no key is left for a pass after this pass."""
        return self.high == SHARDS

    def put(self, key: bytes, offset: int) -> None:
        """Set the last offset of ``key``, unless another pass takes the key.  Offsets must rise.

        Raises MemoryError if the keys of one shard alone are more than ``entries_max``.
        """
        digest = _digest(key)
        number = _shard_of(digest)
        if not self.low <= number < self.high:
            return
        shard = self._shards.get(number, bytearray())
        at = _find(shard, digest)
        if at >= 0:
            shard[at + HASH_BYTES : at + ENTRY_BYTES] = offset.to_bytes(8, "big")
            return
        if self._count == self.entries_max:
            self._narrow(number)
            if number >= self.high:
                return
        shard += digest + offset.to_bytes(8, "big")
        self._shards[number] = shard
        self._count += 1

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``; -1 if the map does not have the key."""
        digest = _digest(key)
        shard = self._shards.get(_shard_of(digest))
        if shard is None:
            return -1
        at = _find(shard, digest)
        return int.from_bytes(shard[at + HASH_BYTES : at + ENTRY_BYTES], "big") if at >= 0 else -1

    def next_pass(self) -> None:
        """Empty the map for the keys that no pass has taken yet."""
        if self.is_last:
            raise ValueError("no key is left for another pass")
        self.low, self.high = self.high, SHARDS
        self._shards, self._count = {}, 0

    def _narrow(self, wanted: int) -> None:
        """Lower ``high`` until half of the entries are gone, as far as whole shards allow.

        ``wanted`` is the shard that needs an entry.
        """
        numbers = sorted({*self._shards, wanted})
        if len(numbers) == 1:
            raise MemoryError(f"more than {self.entries_max} keys share the first two bytes of their hash")
        kept = self._entries(numbers[0])
        at = 1
        while at < len(numbers) - 1 and kept + self._entries(numbers[at]) <= self.entries_max // 2:
            kept += self._entries(numbers[at])
            at += 1
        self.high = numbers[at]
        for number in numbers[at:]:
            self._shards.pop(number, None)
        self._count = kept

    def _entries(self, number: int) -> int:
        return len(self._shards.get(number, b"")) // ENTRY_BYTES


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=HASH_BYTES).digest()


def _shard_of(digest: bytes) -> int:
    return int.from_bytes(digest[:2], "big")


def _find(shard: bytearray, digest: bytes) -> int:
    """Return the position of the digest's entry; -1 if the shard has none."""
    at = shard.find(digest)
    while at >= 0 and at % ENTRY_BYTES:  # bytes of two neighbours that look like the digest
        at = shard.find(digest, at + 1)
    return at
