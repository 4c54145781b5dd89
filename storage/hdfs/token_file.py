"""Files of credentials that Hadoop's tools and YARN write, named by HADOOP_TOKEN_FILE_LOCATION (Credentials).

::

    "HDTS", version 0: number of tokens; per token: alias, identifier, password, kind, service; then secret keys
    "HDTS", version 1: the length of a protocol buffer, and the buffer (CredentialsProto)

YARN writes the file for a container, ``hdfs fetchdt`` and ``hadoop dtutil`` for a user.  As in
UserGroupInformation, the variable names several files with commas, and a later file's token replaces a former one of
the same alias.  Unlike there a missing file is an error: Hadoop's client goes on without the token, and fails at the
log-in, whose error does not name the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from bmq.storage.filesystem import CannotLogIn
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import WireError, decode_varint
from bmq.storage.hdfs.delegation_token import IDENTIFIER_BYTES_MAX, HadoopToken
from bmq.storage.hdfs.writables import Malformed, WritableReader

TOKEN_FILE_LOCATION = "HADOOP_TOKEN_FILE_LOCATION"
FILE_BYTES_MAX = 4 << 20
"""Longest file: a token has some 200 bytes."""
TOKENS_MAX = 10_000
FILES_MAX = 16
_MAGIC = b"HDTS"
_HEADER_BYTES = 5
_WRITABLE, _PROTOBUF = 0, 1
_NAME_BYTES_MAX = 4 << 10
_PASSWORD_BYTES_MAX = 4 << 10

Tokens = Mapping[str, HadoopToken]
"""Tokens by their alias."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file by which a change is noticed: its path, inode, length and time of change."""

    path: str
    inode: int
    length: int
    modified_ns: int


def token_files(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the paths that HADOOP_TOKEN_FILE_LOCATION has.  Raises CannotLogIn for more than 16."""
    paths = token_paths(environment)
    if len(paths) > FILES_MAX:
        raise CannotLogIn(f"{TOKEN_FILE_LOCATION} names {len(paths)} files: at most {FILES_MAX} are read")
    return paths


def token_paths(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths that HADOOP_TOKEN_FILE_LOCATION has, however many."""
    paths = dict.fromkeys(path.strip() for path in environment.get(TOKEN_FILE_LOCATION, "").split(","))
    paths.pop("", None)
    return tuple(paths)


def read_token_files(paths: tuple[str, ...]) -> Tokens:
    """Return the tokens of these files.  Raises CannotLogIn, whose text names the file and the fault."""
    tokens: dict[str, HadoopToken] = {}
    for path in paths:
        try:
            tokens |= decode_tokens(_read(path))
        except Malformed as error:
            raise CannotLogIn(
                f"{path}, of {TOKEN_FILE_LOCATION}, is not a file of Hadoop's credentials: {error}"
            ) from None
    return tokens


def file_states(paths: tuple[str, ...]) -> tuple[FileState, ...]:
    """Return the states of the files that can be read now."""
    states = []
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            continue  # the tokens that were read before are used on
        states.append(FileState(path, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(states)


def decode_tokens(data: bytes) -> Tokens:
    """Return the tokens in the bytes of a file, by alias.  Secret keys are left out.  Raises Malformed."""
    if len(data) < _HEADER_BYTES or not data.startswith(_MAGIC):
        raise Malformed("it does not begin with HDTS and a version")
    match data[_HEADER_BYTES - 1]:
        case 0:
            return _decode_writable(data)
        case 1:
            return _decode_protobuf(data)
        case version:
            raise Malformed(f"it has version {version}; this client reads {_WRITABLE} and {_PROTOBUF}")


def _decode_writable(data: bytes) -> Tokens:
    reader = WritableReader(data, _HEADER_BYTES)
    tokens: dict[str, HadoopToken] = {}
    for _ in range(_count(reader, "tokens")):
        alias = reader.text(_NAME_BYTES_MAX)
        identifier, password = reader.data(IDENTIFIER_BYTES_MAX), reader.data(_PASSWORD_BYTES_MAX)
        kind, service = reader.text(_NAME_BYTES_MAX), reader.text(_NAME_BYTES_MAX)
        tokens[alias] = HadoopToken(kind, service, identifier, password)
    for _ in range(_count(reader, "secret keys")):
        reader.text(_NAME_BYTES_MAX)
        reader.data(FILE_BYTES_MAX)
    reader.require_end()
    return tokens


def _count(reader: WritableReader, what: str) -> int:
    count = reader.int32()
    if not 0 <= count <= TOKENS_MAX:
        raise reader.malformed(f"{count} {what}, at most {TOKENS_MAX} are taken")
    return count


def _decode_protobuf(data: bytes) -> Tokens:
    try:
        length, position = decode_varint(data, _HEADER_BYTES)
        if position < 0 or position + length != len(data):
            raise Malformed(f"{max(length, 0)} bytes are announced, and {len(data) - max(position, 0)} follow")
        credentials = pb.Credentials.FromString(data[position:])
    except (WireError, DecodeError):
        raise Malformed("its protocol buffer is damaged") from None
    if len(credentials.tokens) > TOKENS_MAX:
        raise Malformed(f"{len(credentials.tokens)} tokens, at most {TOKENS_MAX} are taken")
    if not credentials.IsInitialized():
        raise Malformed("a token lacks one of its fields")
    tokens = {}
    for entry in credentials.tokens:
        texts = (entry.alias, entry.token.kind, entry.token.service)
        if not all(isinstance(text, str) for text in texts):  # a string that is not UTF-8 comes out as bytes
            raise Malformed("a text that is not UTF-8")
        if not entry.HasField("token"):
            continue  # Hadoop's reader takes no token from it either
        if len(entry.token.identifier) > IDENTIFIER_BYTES_MAX or len(entry.token.password) > _PASSWORD_BYTES_MAX:
            raise Malformed("a token with an identifier or a password that is too long")
        tokens[entry.alias] = HadoopToken.from_message(entry.token)
    return tokens


def _read(path: str) -> bytes:
    """Return the bytes of a file.  Raises CannotLogIn if it is none, or is too long."""
    what = f"{path}, of {TOKEN_FILE_LOCATION},"
    if not Path(path).exists():
        raise CannotLogIn(f"{what} does not exist: unset the variable, or write the file with hdfs fetchdt")
    if not Path(path).is_file():
        raise CannotLogIn(f"{what} is not a file")
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CannotLogIn(f"{what} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CannotLogIn(f"{what} is longer than {FILE_BYTES_MAX} bytes, which no file of Hadoop's credentials is")
    return data
