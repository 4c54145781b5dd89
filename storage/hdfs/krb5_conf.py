"""The settings of ``krb5.conf`` that a check of the log-in needs, as MIT's library reads them, with all includes.

GSSAPI has no call for them, so the library's own functions are called.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import NamedTuple

from bmq.storage.hdfs.kdc_clock import kdc_ahead_s

LIBRARY = "libkrb5.so.3"
PATH = "/etc/krb5.conf"
KDC_PORT = 88
_VALUES_MAX = 64


class Krb5ConfError(Exception):
    """The library, or its configuration, cannot be read: the text says why."""


@dataclass(frozen=True, slots=True)
class Krb5Conf:
    """The configuration in ``paths``.  ``realm`` is the default one, "" for none.

    ``kdcs`` are the KDCs of the realm that was asked for, as the file has them; none if DNS is to be asked.
    """

    paths: str
    realm: str
    kdcs: tuple[str, ...]


def conf_paths() -> str:
    """Return the files that the library reads: KRB5_CONFIG, else its own default."""
    return os.environ.get("KRB5_CONFIG", "") or PATH


def read_conf(realm: str = "") -> Krb5Conf:
    """Return the configuration, and the KDCs of ``realm`` or of the default realm.  Raises Krb5ConfError."""
    paths = conf_paths()
    unreadable = [path for path in paths.split(":") if not os.access(path, os.R_OK)]
    if len(unreadable) == len(paths.split(":")):
        raise Krb5ConfError(f"{paths} cannot be read, or is not there")
    library = _load()
    context = ctypes.c_void_p()
    if code := library.krb5_init_context(ctypes.byref(context)):
        raise Krb5ConfError(f"{paths}: {_text(library, None, code)}")
    try:
        default = _default_realm(library, context)
        return Krb5Conf(paths, default, _kdcs(library, context, realm or default))
    finally:
        library.krb5_free_context(context)


def kdc_address(text: str) -> tuple[str, int] | None:
    """Return host and port of a KDC as ``krb5.conf`` names it; None for a URL, as of a proxy."""
    scheme, slash, rest = text.partition("/")
    if "://" in text:
        return None
    name = rest if slash and scheme in {"tcp", "udp"} else text
    if name.startswith("["):
        host, _, port = name[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = name.partition(":") if name.count(":") == 1 else (name, "", "")
    return (host, int(port)) if port.isdigit() else (host, KDC_PORT)


class ClockDifference(NamedTuple):
    """The difference of a KDC's clock in seconds, positive if it is ahead, and the text that says so."""

    ahead_s: float
    text: str


def ask_clock(conf: Krb5Conf, name: str, realm: str, timeout_s: float) -> ClockDifference:
    """Return the difference of the first KDC of ``conf`` that responds.

    Blocks.  ``name`` is a principal without its ``realm``.  Raises OSError or ValueError if no KDC shows its clock.
    """
    failure: OSError | ValueError | None = None
    for address in filter(None, map(kdc_address, conf.kdcs)):
        kdc = f"{address[0]}:{address[1]}"
        try:
            ahead_s = kdc_ahead_s(address, name, realm, timeout_s)
        except (OSError, ValueError) as error:
            failure = failure or OSError(f"the KDC {kdc} does not show its clock: {error}")
            continue
        side = "ahead of" if ahead_s > 0 else "behind"
        return ClockDifference(ahead_s, f"the clock of the KDC {kdc} is {abs(ahead_s):.1f} s {side} this machine's")
    raise failure or ValueError("krb5.conf names no KDC with an address")


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Krb5ConfError(f"{LIBRARY} is not here: {error}") from error
    library.krb5_get_error_message.restype = ctypes.c_void_p
    library.krb5_get_error_message.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.krb5_free_error_message.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.krb5_free_default_realm.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.krb5_free_context.argtypes = [ctypes.c_void_p]
    library.profile_free_list.argtypes = [ctypes.c_void_p]
    library.profile_release.argtypes = [ctypes.c_void_p]
    return library


def _text(library: ctypes.CDLL, context: ctypes.c_void_p | None, code: int) -> str:
    message = library.krb5_get_error_message(context, code)
    text = ctypes.string_at(message).decode(errors="replace")
    library.krb5_free_error_message(context, message)
    return text


def _default_realm(library: ctypes.CDLL, context: ctypes.c_void_p) -> str:
    realm = ctypes.c_void_p()
    if library.krb5_get_default_realm(context, ctypes.byref(realm)) or not realm.value:
        return ""
    text = ctypes.string_at(realm.value).decode(errors="replace")
    library.krb5_free_default_realm(context, realm)
    return text


def _kdcs(library: ctypes.CDLL, context: ctypes.c_void_p, realm: str) -> tuple[str, ...]:
    profile = ctypes.c_void_p()
    if not realm or library.krb5_get_profile(context, ctypes.byref(profile)):
        return ()
    try:
        names = (ctypes.c_char_p * 4)(b"realms", realm.encode(), b"kdc", None)
        values = ctypes.POINTER(ctypes.c_char_p)()
        if library.profile_get_values(profile, names, ctypes.byref(values)):
            return ()  # the file has no such entry
        found = []
        for number in range(_VALUES_MAX):
            value = values[number]
            if value is None:
                break
            found.append(value.decode(errors="replace"))
        library.profile_free_list(values)
        return tuple(found)
    finally:
        library.profile_release(profile)
