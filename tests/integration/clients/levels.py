"""The level of transaction.version, set as an operator sets it."""

from __future__ import annotations

from kafka.admin import KafkaAdminClient

from bmq.core.features import TRANSACTION_VERSION
from tests.services.processes import wait_for

DEFAULT_LEVEL = 2
"""The level of a new cluster."""
LEVEL_S = 20.0


def set_level(bootstrap: str, level: int) -> None:
    """Raise or lower the level if it is another one, and wait until ApiVersions lists it."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def finalized() -> int:
        feature = admin.describe_features().get(TRANSACTION_VERSION, {})
        return int(feature.get("finalized", (0, 0))[1])

    try:
        before = finalized()
        if before != level:
            kind = "upgrade" if level > before else "safe_downgrade"
            assert admin.update_features({TRANSACTION_VERSION: (kind, level)}) == {TRANSACTION_VERSION: "OK"}
            wait_for(lambda: finalized() == level, f"transaction.version {level}", timeout_s=LEVEL_S)
    finally:
        admin.close()
