"""Lost records: a read fails, or warns and continues with those that are left."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bmq.spark.planning.slices import DataLoss

_log = logging.getLogger("bmq.spark")


def raise_or_warn(losses: Iterable[str], *, fail_on_data_loss: bool) -> None:
    """Raise DataLoss for the first loss, or log a warning for each."""
    for loss in losses:
        if fail_on_data_loss:
            raise DataLoss(f"{loss}. Set failOnDataLoss=false to read what is left")
        _log.warning("%s", loss)
