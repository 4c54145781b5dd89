"""Records that were asked for and are gone: a read fails, or warns and goes on with what is left."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bmq.spark.planning.slices import DataLoss

_log = logging.getLogger("bmq.spark")


def raise_or_warn(losses: Iterable[str], *, fail_on_data_loss: bool) -> None:
    """DataLoss of the first one, or a warning of each."""
    for loss in losses:
        if fail_on_data_loss:
            raise DataLoss(f"{loss}. With failOnDataLoss=false what is left would be read")
        _log.warning("%s", loss)
