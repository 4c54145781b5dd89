"""SipHash-2-4 with 128 bits (Aumasson and Bernstein), of a key among the bytes of a batch."""

from __future__ import annotations

from bmq.storage.cleaning.loops.words import Bytes, Word, as_word, inlined

_0, _1, _2, _3, _4, _5, _6, _7, _8 = map(as_word, range(9))
_13, _16, _17, _21, _24, _32 = map(as_word, (13, 16, 17, 21, 24, 32))
_40, _43, _47, _48, _51, _56 = map(as_word, (40, 43, 47, 48, 51, 56))
_SIP_0, _SIP_1, _SIP_2, _SIP_3 = (
    as_word(int.from_bytes(each, "big")) for each in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
)
_FIRST_WORD, _SECOND_WORD = as_word(0xEE), as_word(0xDD)


@inlined
def read_word(data: Bytes, at: int) -> int:
    """Return the 8 bytes at ``at``, the lowest first: a single instruction."""
    return (
        Word(data[at])
        | Word(data[at + _1]) << _8
        | Word(data[at + _2]) << _16
        | Word(data[at + _3]) << _24
        | Word(data[at + _4]) << _32
        | Word(data[at + _5]) << _40
        | Word(data[at + _6]) << _48
        | Word(data[at + _7]) << _56
    )


@inlined
def _mixed(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    """Return the state of SipHash after one round."""
    v0 += v1
    v2 += v3
    v1 = (v1 << _13) | (v1 >> _51)
    v3 = (v3 << _16) | (v3 >> _48)
    v1 ^= v0
    v3 ^= v2
    v0 = (v0 << _32) | (v0 >> _32)
    v2 += v1
    v0 += v3
    v1 = (v1 << _17) | (v1 >> _47)
    v3 = (v3 << _21) | (v3 >> _43)
    v1 ^= v2
    v3 ^= v0
    v2 = (v2 << _32) | (v2 >> _32)
    return v0, v1, v2, v3


@inlined
def hash_key(data: Bytes, start: int, size: int, key_0: int, key_1: int) -> tuple[int, int]:
    """Return the two words of SipHash-2-4-128 of ``size`` bytes at ``start``."""
    v0, v1, v2, v3 = key_0 ^ _SIP_0, key_1 ^ _SIP_1 ^ _FIRST_WORD, key_0 ^ _SIP_2, key_1 ^ _SIP_3
    at = Word(start)
    end = at + Word(size)
    whole = at + (Word(size) & ~_7)
    while at < whole:
        word = read_word(data, at)
        at += _8
        v3 ^= word
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
        v0 ^= word
    word = Word(size) << _56
    shift = _0
    while at < end:
        word |= Word(data[at]) << shift
        shift += _8
        at += _1
    v3 ^= word
    v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _FIRST_WORD
    for _ in range(4):
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND_WORD
    for _ in range(4):
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3
