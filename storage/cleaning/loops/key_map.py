"""The map of a pass: the last offset of each key, by the key's hash.

The map is a hash table with linear probing, three words an entry::

    hash, 8 bytes    hash, 8 bytes    offset + 1, 0 if the slot is free

``loops.sip_hash`` hashes keys under a secret of the round: no client can find keys that share a hash or a
slot.  The first word decides the pass of a key, the second word its slot.

A large map is not in the processor's caches.  So keys are looked up in groups: first the memory of all their slots is
read, which the processor does at the same time.

A full map gives up its larger hashes to a later pass.  About half of the entries stay: the new bound is found by
bisection, so it needs no memory.
"""

from __future__ import annotations

from bmq.storage.cleaning.loops.layout import (
    COUNT,
    COUNT_MAX,
    FIRST,
    GROUP_AT,
    GROUPED,
    KEY_0,
    KEY_1,
    LAST,
    LOW,
    NUMBER,
    OFFSET,
    READ,
    SECOND,
    WORDS,
)
from bmq.storage.cleaning.loops.sip_hash import hash_key
from bmq.storage.cleaning.loops.words import Bytes, Int64, Word, Words, as_word, inlined, rare

_0, _1, _2, _3, _32 = map(as_word, (0, 1, 2, 3, 32))


@inlined
def _slot(table: Words, second: int) -> int:
    """Return the position of the slot where the search for a hash begins."""
    return (((second >> _32) * (Word(len(table)) // _3)) >> _32) * _3


@inlined
def _find(table: Words, first: int, second: int) -> tuple[int, bool]:
    """Return the position of the entry with this hash and True, or that of the free slot for the hash and False.

    A map has a free slot always.
    """
    size = Word(len(table))
    at = _slot(table, second)
    while table[at + _2] != _0:
        if table[at] == first and table[at + _1] == second:
            return at, True
        at += _3
        if at == size:
            at = _0
    return at, False


@inlined
def _last_offset(table: Words, first: int, second: int) -> int:
    """Return the last offset of a key by its hash; -1 if the map does not have the key."""
    at, is_there = _find(table, first, second)
    return Int64(table[at + _2]) - 1 if is_there else Int64(-1)


@inlined
def add_to_group(state: Words, end: int, data: Bytes, key_at: int, key_size: int, offset: int, number: int) -> int:
    """Append a record to the group that ends at ``end``.  Return the new end."""
    first, second = hash_key(data, key_at, key_size, state[KEY_0], state[KEY_1])
    state[end + FIRST] = first
    state[end + SECOND] = second
    state[end + OFFSET] = Word(offset)
    state[end + NUMBER] = Word(number)
    return end + GROUPED


@inlined
def read_slots(table: Words, state: Words, end: int) -> None:
    """Read the memory of the slots of the group's records."""
    for at in range(GROUP_AT, end, GROUPED):
        slot = _slot(table, state[at + SECOND])
        state[at + READ] = table[slot] ^ table[slot + _2]  # an entry may lie across two lines of the cache


@inlined
def is_superseded(table: Words, state: Words, at: int) -> bool:
    """Return whether the map has a later record of the key of the group's record at ``at``."""
    return _last_offset(table, state[at + FIRST], state[at + SECOND]) > Int64(state[at + OFFSET])


@inlined
def put_group(table: Words, state: Words, end: int) -> bool:
    """Map the keys of the group's records.  Return False if the map has no room."""
    read_slots(table, state, end)
    for at in range(GROUP_AT, end, GROUPED):
        if not _put(table, state, state[at + FIRST], state[at + SECOND], Int64(state[at + OFFSET])):
            return False
    return True


@inlined
def _put(table: Words, state: Words, first: int, second: int, offset: int) -> bool:
    """Set the last offset of a key by its hash, unless another pass takes the key.  Return False if it has no room."""
    if first < state[LOW] or first > state[LAST]:
        return True
    at, is_there = _find(table, first, second)
    if not is_there:
        if state[COUNT] >= state[COUNT_MAX]:
            if not _narrow(table, state, first):
                return False
            if first > state[LAST]:
                return True
            at, _ = _find(table, first, second)
        table[at] = first
        table[at + _1] = second
        state[COUNT] += _1
    table[at + _2] = Word(offset + 1)
    return True


@rare
def _narrow(table: Words, state: Words, wanted: int) -> bool:
    """Lower the last hash of the pass, until at most half of the entries are left and at least a quarter.

    ``wanted`` is the hash that needs an entry.  Returns False if a single hash has more entries than there is room for.
    """
    total = state[COUNT] + _1
    most = total >> _1
    least = max(most >> _1, _1)
    low, high = state[LOW], state[LAST]
    while True:
        last = low + ((high - low) >> _1)
        kept = _1 if wanted <= last else _0
        for at in range(0, len(table), WORDS):
            if table[at + 2] != _0 and table[at] <= last:
                kept += _1
        if low == high and kept > state[COUNT_MAX]:
            return False
        if low == high or (least <= kept <= most):
            break
        if kept > most:
            high = last
        else:
            low = last + _1
    state[LAST] = last
    state[COUNT] = kept - _1 if wanted <= last else kept
    _drop_behind(table, last)
    return True


@rare
def _drop_behind(table: Words, last: int) -> None:
    """Remove the entries whose first word is past ``last``, in place.

    Entries are taken out in the order of slots, from behind a free slot on, and put back.  The search for an entry
    never passes the free slot.  So the new place of an entry is its old place, or before it.
    """
    size = len(table)
    free = 0
    while table[free + 2] != _0:
        free += WORDS
    for step in range(WORDS, size, WORDS):
        at = free + step
        if at >= size:
            at -= size
        first, second, stored = table[at], table[at + 1], table[at + 2]
        if stored == _0:
            continue
        table[at + 2] = _0
        if first <= last:
            place, _ = _find(table, first, second)
            table[place] = first
            table[place + _1] = second
            table[place + _2] = stored
