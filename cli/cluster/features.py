"""``bmq cluster features``: the levels of features of a running cluster, shown and set (KIP-584, KIP-1022)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.admin import UpdateFeaturesRequest

from bmq.cli.admin_client import AdminClient, ask, check, server_timeout_ms
from bmq.cli.output import print_json, print_table, printable
from bmq.cli.usage import UsageError
from bmq.core.features import UpgradeType

_TITLES = ("FEATURE", "LEVEL", "LOWEST", "HIGHEST", "EPOCH")
_KEYS = ("feature", "level", "lowest", "highest", "epoch")
WITH_DRY_RUN_SINCE = 1
"""The first version of UpdateFeatures with ``validate_only`` and the kind of each update."""


def features(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Set the levels of ``--upgrade`` and ``--downgrade``, or print all levels without these options.

    Raises UsageError for a repeated feature, or a dry run without a change.  Raises RequestRefused if the cluster
    refuses a change, and then makes no change at all.
    """
    wanted = [(*each, UpgradeType.UPGRADE) for each in arguments.upgrade]
    wanted += [(*each, UpgradeType.SAFE_DOWNGRADE) for each in arguments.downgrade]
    if not wanted:
        if arguments.dry_run:
            raise UsageError("--dry-run is for --upgrade NAME=LEVEL or --downgrade NAME=LEVEL")
        _print_levels(admin.describe_features(), as_json=arguments.json)
        return 0
    names = [name for name, _, _ in wanted]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"feature {twice[0]} is given twice")
    update = UpdateFeaturesRequest.FeatureUpdateKey
    request = UpdateFeaturesRequest(
        timeout_ms=server_timeout_ms(arguments),
        feature_updates=[
            update(feature=name, max_version_level=level, upgrade_type=kind.value) for name, level, kind in wanted
        ],
        validate_only=arguments.dry_run,
        min_version=WITH_DRY_RUN_SINCE,
    )
    response = ask(admin, request)
    check(response.error_code, response.error_message, "no level is changed", "Alter on the cluster")
    _print_updates(wanted, is_dry_run=arguments.dry_run, as_json=arguments.json)
    return 0


def _print_levels(found: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the level of each feature, and the levels supported by the responding server."""
    rows = [
        (name, each.get("finalized", (0, 0))[1], *each.get("supported", (0, 0)), each.get("finalized_epoch"))
        for name, each in sorted(found.items())
    ]
    if as_json:
        for row in rows:
            print_json(dict(zip(_KEYS, row, strict=True)))
    else:
        print_table(_TITLES, rows, if_none="the cluster has no features")


def _print_updates(wanted: Iterable[tuple[str, int, UpgradeType]], *, is_dry_run: bool, as_json: bool) -> None:
    for name, level, kind in wanted:
        if as_json:
            print_json({"feature": name, "level": level, "is_dry_run": is_dry_run})
            continue
        done = "raised" if kind is UpgradeType.UPGRADE else "lowered"
        print(printable(f"{name}: {'can be ' if is_dry_run else ''}{done} to {level}"))
