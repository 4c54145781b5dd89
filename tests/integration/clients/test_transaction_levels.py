"""Story of transactions with Java's client at each level of `transaction.version` that this version offers.

The client follows the level that the cluster has in force: from level 2 on it does not add partitions first, and counts
its epoch up with each transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmq.core.features import FEATURES, TRANSACTION_VERSION
from tests.integration.clients import endpoint as endpoints
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.transaction_story import TransactionStory
from tests.integration.clients.transactional.program import JavaTransactional
from tests.services.kafka_tools import run_tool
from tests.services.processes import wait_for

FEATURE = FEATURES.find(TRANSACTION_VERSION)
assert FEATURE is not None
HIGHEST = FEATURE.supported.highest
LEVELS = [*(level for level in range(1, HIGHEST) if (HIGHEST, level) in FEATURE.safe_downgrades), HIGHEST]
"""Levels of a new cluster: it begins at the highest level, and can be lowered where that is safe."""
LEVEL_TIMEOUT_S = 60.0


def level_in_force(bootstrap: str) -> int:
    """Return the level of transactions as kafka-features.sh describes it."""
    described = run_tool("FeatureCommand", "--bootstrap-server", bootstrap, "describe").lines
    (line,) = [line for line in described if TRANSACTION_VERSION in line.split()]
    return int(line.split("FinalizedVersionLevel:")[1].split()[0])


@pytest.fixture(scope="class", params=LEVELS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """Yield a `bmq serve` of its own, at one level."""
    level = request.param
    with endpoints.serve("bmq-local", str, lambda: request.session.testsfailed > 0) as served:
        wait_for(lambda: level_in_force(served.bootstrap) == HIGHEST, "the highest level", timeout_s=LEVEL_TIMEOUT_S)
        if level < HIGHEST:
            wanted = ("downgrade", "--feature", f"{TRANSACTION_VERSION}={level}")
            run_tool("FeatureCommand", "--bootstrap-server", served.bootstrap, *wanted)
            wait_for(lambda: level_in_force(served.bootstrap) == level, f"level {level}", timeout_s=LEVEL_TIMEOUT_S)
        yield served


class TestJava(TransactionStory):
    library = JavaTransactional
