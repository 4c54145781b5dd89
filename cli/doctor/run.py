"""``bmq cluster doctor``, carried out: each check by itself, bounded in time, whatever the result of the others."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bmq.cli.doctor.checks import (
    Diagnosis,
    Health,
    check_clock,
    check_copies,
    check_health,
    check_lease,
    check_members,
    check_servers,
    check_store,
    check_unreadable,
)
from bmq.cli.doctor.cleaning import examine_cleaning
from bmq.cli.doctor.clock import clock_of
from bmq.cli.doctor.readiness import Servers, address_of, servers_of
from bmq.cli.doctor.storage import check_namenodes, check_storage
from bmq.cli.exit_status import EXIT_USAGE
from bmq.cli.output import fail, print_json, printable
from bmq.cli.profile import profiles
from bmq.cli.serve import DATA, places_here
from bmq.cli.server_settings import load_settings
from bmq.cli.store_command import PLACES
from bmq.cli.usage import UsageError
from bmq.controller.store_age import StoreOlder, check_store_age
from bmq.controller.store_upkeep import maintained
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.errors import FormatError
from bmq.core.features import REMEDY, UnsupportedLevel
from bmq.core.urls import split_url, without_userinfo
from bmq.meta.catalog import catalog_prefix, cluster_id_key, decode_topic
from bmq.meta.cluster.keys import controller_key, members_prefix
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.kv_sqlite import StoreLocked
from bmq.meta.maintenance import Inspected
from bmq.meta.open import etcd_tls, is_shared, open_keyvalue
from bmq.meta.root import RootRecord, read_root
from bmq.server.root_guard import RootVerdict, first_data, judge
from bmq.storage.cluster_files import read_cluster
from bmq.storage.filesystem import FileSystem, OutOfSpace, StorageError, StorageUnavailable, Unsupported, write_once
from bmq.storage.health import FAILED, Examined, LoginStep
from bmq.storage.open import login_steps, namenode_states, open_filesystem
from bmq.storage.root_id import read_root_id

PARALLEL = 16
LOGIN = "log-in"
"""The area of the steps of the log-in to a secure HDFS."""
T = TypeVar("T")


class _Stored:
    """The cluster's data in the store."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.root: RootRecord | None = None
        self.has_data = False
        self.members: list[Member] = []
        self.copies: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}
        self.servers: list[str] = []
        """Addresses of the store's servers, ``host:port``."""


def perform(arguments: argparse.Namespace) -> int:
    """Print the findings and return the exit status."""
    try:
        config = _with_places(_settings(arguments))
        servers = servers_of(config, _http_url(arguments, config))
        steps, findings = asyncio.run(examine(config, servers, arguments.timeout))
    except (UsageError, ConfigError, ValueError) as error:
        return fail(str(error), status=EXIT_USAGE)
    for step in steps:
        _print_step(step, as_json=arguments.json)
    for finding in findings:
        if arguments.json:
            print_json(finding._asdict())
        else:
            print(printable(f"{finding.area}: {finding.subject}: {finding.what}"))
            print(printable(f"    {finding.remedy}"))
    count = len(findings) + sum(step.result == FAILED for step in steps)
    if not count and not arguments.json:
        print("all is well")
    if count and not arguments.json:
        print(f"{count} found", file=sys.stderr)
    return 1 if count else 0


def _print_step(step: LoginStep, *, as_json: bool) -> None:
    """Print a step of the log-in to storage, whatever its result: as a finding that has a ``result`` too."""
    if as_json:
        found = Diagnosis(LOGIN, step.name, step.what, step.remedy)
        print_json({**found._asdict(), "result": step.result})
        return
    print(printable(f"{LOGIN}: {step.name}: {step.result}: {step.what}"))
    if step.remedy:
        print(printable(f"    {step.remedy}"))


def _with_places(config: NodeConfig) -> NodeConfig:
    """Return the settings with the places of a server without settings for them, if its folder is here.

    Raises ConfigError if a place is missing otherwise: a check must not make the folder.
    """
    if config.root and config.meta:
        return config
    if not Path(DATA).is_dir():
        raise ConfigError(
            "root and meta are needed: give --root and --meta, --config or --profile,"
            f" or run it where `bmq serve` has its ./{DATA}"
        )
    root, meta = places_here()
    return replace(config, root=config.root or root, meta=config.meta or meta)


def _settings(arguments: argparse.Namespace) -> NodeConfig:
    """Return the servers' settings; a profile stands in for flags, or for defaults.  Raises UsageError or
    ConfigError."""
    chosen = _places(profiles.named(arguments))
    flags = {name: getattr(arguments, name) or chosen.get(name) for name in PLACES}
    flags["http"] = address_of(_given_http(arguments)) or None
    return load_settings(arguments.config, flags, replace(NodeConfig(), **_places(profiles.implied(arguments))))


def _places(profile: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that a profile gives; its ``http`` is a URL, the setting an address."""
    given = {name: profile[name] for name in PLACES if name in profile}
    if "http" in profile:
        given["http"] = address_of(profile["http"].rstrip("/"))
    return given


def _given_http(arguments: argparse.Namespace) -> str:
    """Return the HTTP address that the caller gives, "" if none, in the order of ``bmq cluster status``."""
    given = (arguments.http, profiles.named(arguments).get("http"), os.environ.get("BMQ_HTTP_URL"))
    return next((each for each in given if each), "").rstrip("/")


def _http_url(arguments: argparse.Namespace, config: NodeConfig) -> str | None:
    """Return the URL of a server; None if the setting ``http_tls`` decides about its scheme.

    A profile that the environment or the file chooses counts if it gave the setting ``http``.
    """
    url = _given_http(arguments)
    if not url:
        implied = profiles.implied(arguments).get("http", "").rstrip("/")
        url = implied if address_of(implied) == config.http else ""
    return f"{split_url(url).scheme}://{address_of(url)}" if "://" in url else None


async def examine(
    config: NodeConfig, servers: Servers, timeout_s: float
) -> tuple[Sequence[LoginStep], list[Diagnosis]]:
    """Return the steps of the log-in to a secure HDFS, and all findings.

    The root is not examined after a step that failed: each finding would have the same cause.  Raises ValueError if an
    address is not one of a store or root.
    """
    findings, stored = await _examine_store(config, servers, timeout_s)
    steps = await login_steps(config.root, config.hadoop_conf_dir, timeout_s, hdfs_login=config.hdfs_login)
    if not any(step.result == FAILED for step in steps):
        findings += await _examine_root(config, stored, timeout_s)
    return steps, findings + await _examine_members(config, servers, stored, timeout_s)


# --------------------------------------------------------------------------------------------------------------- store


async def _examine_store(
    config: NodeConfig, servers: Servers, timeout_s: float
) -> tuple[list[Diagnosis], _Stored | None]:
    """Return the findings, and the store's data; None if it cannot be read, or is a running server's own."""
    url = without_userinfo(config.meta)
    if not is_shared(config.meta) and (await asyncio.to_thread(servers.ask, servers.url, timeout_s)).status:
        return [], None  # one process has the file open, and its /readyz reports for it
    try:
        kv = await _bounded(open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password), timeout_s)
    except StoreLocked as error:
        return [_held_store(url, error)], None
    except (KvError, TimeoutError) as error:
        return [_no_store(url, error, timeout_s)], None
    try:
        findings, stored = await _bounded(_read_store(kv, config, url), timeout_s)
        return findings + await _examine_clocks(config, stored.servers, timeout_s), stored
    except (KvError, TimeoutError) as error:
        return [_no_store(url, error, timeout_s)], None
    finally:
        await kv.close()


async def _examine_clocks(config: NodeConfig, servers: Sequence[str], timeout_s: float) -> list[Diagnosis]:
    """Return findings for the store's servers whose clocks differ from this machine's."""
    context = etcd_tls(config.meta) if servers else None
    ahead = await asyncio.gather(*(asyncio.to_thread(clock_of, each, context, timeout_s) for each in servers))
    return [finding for name, each in zip(servers, ahead, strict=True) for finding in check_clock("store", name, each)]


def _held_store(url: str, error: StoreLocked) -> Diagnosis:
    """Return the finding of a store that a process holds, although no server answers at the HTTP address."""
    remedy = (
        "if this process is the server, nothing is wrong with the store: give the server's HTTP address (--http, or"
        " `http` and `http_tls` in --config); else end the process"
    )
    return Diagnosis("store", url, str(error), remedy)


def _no_store(url: str, error: Exception, timeout_s: float) -> Diagnosis:
    what = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
    remedy = "is it up, has it a majority of its members, and are --meta, user and certificates right?"
    return Diagnosis("store", url, what, remedy)


async def _read_store(kv: KeyValue, config: NodeConfig, url: str) -> tuple[list[Diagnosis], _Stored]:
    stored, findings = _Stored(), list[Diagnosis]()
    cluster = config.cluster
    upkeep = maintained(kv)
    if upkeep is not None:
        findings += check_store(url, await upkeep.status())
    if isinstance(kv, Inspected):
        servers = await kv.servers()
        findings += check_servers(url, servers)
        stored.servers = [server.address for server in servers]
    entry = await kv.get(cluster_id_key(cluster))
    if entry is None:
        remedy = "is --cluster, or --meta, another one's? A new cluster begins with its first `bmq serve`"
        findings.append(Diagnosis("store", url, f"it has no cluster {cluster}", remedy))
        return findings, stored
    stored.cluster_id = entry.value.decode("ascii", "backslashreplace")
    try:
        stored.root = await read_root(kv, cluster)
    except FormatError as error:
        stored.unreadable[f"/{cluster}/root"] = str(error)
    stored.has_data = await first_data(kv, cluster) is not None
    prefix = f"{catalog_prefix(cluster)}topics/"
    async for each in kv.list(prefix):
        try:
            topic = decode_topic(each.key.removeprefix(prefix), each)
            stored.copies[topic.name] = topic.replication_factor
        except FormatError as error:
            stored.unreadable[each.key] = str(error)
    if is_shared(config.meta):
        async for each in kv.list(members_prefix(cluster)):
            try:
                member = decode_member(each.value)
            except FormatError as error:
                stored.unreadable[each.key] = str(error)
                continue
            stored.members.append(member)
            if isinstance(kv, Inspected):
                findings += check_lease(member.incarnation, await kv.lease_left(each.lease))
        leader = await kv.get(controller_key(cluster))
        findings += check_members(stored.members, None if leader is None else leader.value.decode(errors="replace"))
    return findings + check_unreadable(url, stored.unreadable), stored


# ---------------------------------------------------------------------------------------------------------------- root


async def _examine_root(config: NodeConfig, stored: _Stored | None, timeout_s: float) -> list[Diagnosis]:
    url = without_userinfo(config.root)
    findings = check_namenodes(
        await namenode_states(config.root, config.hadoop_conf_dir, timeout_s, hdfs_login=config.hdfs_login)
    )
    return findings + await _examine_content(config, url, stored, timeout_s)


async def _examine_content(config: NodeConfig, url: str, stored: _Stored | None, timeout_s: float) -> list[Diagnosis]:
    try:
        fs = await _bounded(_open_root(config), timeout_s)
    except (StorageError, TimeoutError) as error:
        return [_no_root(url, error, timeout_s)]
    try:
        findings = await _check_root(fs, url, stored, timeout_s)
        if stored is not None and stored.cluster_id is not None and not findings:
            findings = await _check_age(config, fs, url, timeout_s)
        findings += await _check_health(fs, url, timeout_s)
        findings += await _check_write(fs, url, timeout_s)
        if stored is not None:
            findings += await _check_nodes(fs, url, stored, timeout_s)
        return findings
    finally:
        await fs.close()


async def _open_root(config: NodeConfig) -> FileSystem:
    holder = f"doctor-{uuid.uuid4().hex}"
    return await open_filesystem(
        config.root, holder=holder, hadoop_conf_dir=config.hadoop_conf_dir, hdfs_login=config.hdfs_login
    )


async def _check_health(fs: FileSystem, url: str, timeout_s: float) -> list[Diagnosis]:
    if not isinstance(fs, Examined):
        return []  # WebHDFS
    try:
        return check_storage(url, await _bounded(fs.health(), timeout_s))
    except Unsupported:
        return []  # this user may not read it
    except (StorageError, TimeoutError) as error:
        return [_no_root(url, error, timeout_s)]


def _no_root(url: str, error: Exception, timeout_s: float) -> Diagnosis:
    what = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
    if isinstance(error, StorageUnavailable):
        remedy = "is the NameNode up, active and out of safe mode (hdfs dfsadmin -safemode get), and --root right?"
    elif isinstance(error, OutOfSpace):
        remedy = "make room on the disk or the datanodes, or raise the folder's quota"
    else:
        remedy = "does the servers' user own the folder, and is --root right?"
    return Diagnosis("root", url, what, remedy)


async def _check_root(fs: FileSystem, url: str, stored: _Stored | None, timeout_s: float) -> list[Diagnosis]:
    """Compare the root's identity with the store's record of it."""
    try:
        file = await _bounded(read_cluster(fs), timeout_s)
        root_id = await _bounded(read_root_id(fs), timeout_s)
    except UnsupportedLevel as error:
        return [Diagnosis("root", url, error.what, REMEDY)]
    except (StorageError, FormatError, TimeoutError) as error:
        return [_no_root(url, error, timeout_s)]
    if stored is None:
        return []
    cluster_id = stored.cluster_id or ""
    remedy = "check --root: every process needs the same; `bmq cluster merge-root` puts two roots together"
    match judge(stored.root, stored.has_data, file, root_id, cluster_id):
        case RootVerdict.EMPTY_ROOT:
            what = f"it has no cluster.json, and the store has cluster {cluster_id}"
        case RootVerdict.TWO_CLUSTERS if cluster_id:
            what = f"it is the root of cluster {file.cluster_id if file else ''}, the store has cluster {cluster_id}"
        case RootVerdict.OTHER_ROOT if stored.root is not None:
            what = f"it is root {root_id or 'without an id'}, the cluster is served from {stored.root.url}"
        case _:
            return []
    return [Diagnosis("root", url, what, remedy)]


async def _check_age(config: NodeConfig, fs: FileSystem, url: str, timeout_s: float) -> list[Diagnosis]:
    """Return a finding if the store is older than the root.

    The root has to be read before the store, where a leader may raise the count in between.
    """
    meta = without_userinfo(config.meta)

    async def check() -> list[Diagnosis]:
        try:
            file = await read_cluster(fs)
        except UnsupportedLevel:  # a finding of its own
            return []
        kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
        try:
            await check_store_age(kv, fs, config.cluster, 0 if file is None else file.rebuild_count)
        except StoreOlder as error:
            remedy = "stop every process; give them the newest store, or an empty one and `bmq cluster rebuild`"
            return [Diagnosis("store", meta, error.what, remedy)]
        finally:
            await kv.close()
        return []

    try:
        return await _bounded(check(), timeout_s)
    except KvError as error:
        return [_no_store(meta, error, timeout_s)]
    except (StorageError, FormatError, TimeoutError) as error:
        return [_no_root(url, error, timeout_s)]


async def _check_write(fs: FileSystem, url: str, timeout_s: float) -> list[Diagnosis]:
    """Write a small file and delete it; return a finding for what fails."""
    path = f"/.doctor-{uuid.uuid4().hex}"
    try:
        await _bounded(write_once(fs, path, b"bmq cluster doctor\n"), timeout_s)
    except (StorageError, TimeoutError) as error:
        finding = _no_root(url, error, timeout_s)
        findings = [finding._replace(what=f"a file cannot be written: {finding.what}")]
    else:
        findings = []
    try:
        await _bounded(fs.delete(path), timeout_s)
    except (StorageError, TimeoutError) as error:
        if not findings:
            finding = _no_root(url, error, timeout_s)
            findings = [finding._replace(what=f"{path} cannot be deleted: {finding.what}")]
    return findings


async def _check_nodes(fs: FileSystem, url: str, stored: _Stored, timeout_s: float) -> list[Diagnosis]:
    try:
        live = await _bounded(fs.replicas_max(), timeout_s)
    except Unsupported:
        return []  # HDFS shows it to superusers only
    except (StorageError, TimeoutError) as error:
        return [_no_root(url, error, timeout_s)]
    return check_copies(url, live, stored.copies)


# ------------------------------------------------------------------------------------------------------------- members


async def _examine_members(
    config: NodeConfig, servers: Servers, stored: _Stored | None, timeout_s: float
) -> list[Diagnosis]:
    if is_shared(config.meta):
        members = stored.members if stored is not None else []
        asked = [(member.incarnation, f"{servers.scheme}://{member.http}") for member in members if member.http.port]
    else:
        asked = [("the server", servers.url)]
    turns = asyncio.Semaphore(PARALLEL)

    async def ask(url: str) -> Health:
        async with turns:
            return await asyncio.to_thread(servers.ask, url, timeout_s)

    asked.sort()
    healths = await asyncio.gather(*(ask(url) for _, url in asked))
    pairs = list(zip(asked, healths, strict=True))
    findings = [finding for (name, url), health in pairs for finding in check_health(name, url, health)]
    return findings + await examine_cleaning(servers, [each for each, health in pairs if health.status], timeout_s)


async def _bounded(work: Awaitable[T], timeout_s: float) -> T:
    return await asyncio.wait_for(work, timeout_s)
