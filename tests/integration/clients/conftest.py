"""One server for all client tests of a run; see endpoint.py for which."""

from collections.abc import Iterator

import pytest

for name in ("story", "transaction_story", "wire"):
    pytest.register_assert_rewrite(f"tests.integration.clients.{name}")

from tests.integration.clients import endpoint as endpoints  # noqa: E402 - after the registration
from tests.integration.clients.drivers.base import Driver  # noqa: E402
from tests.integration.clients.levels import DEFAULT_LEVEL, set_level  # noqa: E402
from tests.integration.clients.story import Story  # noqa: E402
from tests.integration.clients.transactional.base import Transactional  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the rebalance test once for each assignor that the library has."""
    if "assignor" in metafunc.fixturenames and metafunc.cls is not None and issubclass(metafunc.cls, Story):
        metafunc.parametrize("assignor", metafunc.cls.kind.assignors)


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest) -> Iterator[endpoints.Endpoint]:
    def hdfs_root() -> str:
        return str(request.getfixturevalue("shared_hdfs").root)

    with endpoints.serve(endpoints.target(), hdfs_root, lambda: request.session.testsfailed > 0) as served:
        yield served


@pytest.fixture(scope="class")
def driver(request: pytest.FixtureRequest, endpoint: endpoints.Endpoint) -> Iterator[Driver]:
    """Yield the client of this test class, the same for all its tests."""
    made = request.cls.kind(endpoint.bootstrap)
    yield made
    made.close()


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, endpoint: endpoints.Endpoint) -> Iterator[Transactional]:
    """Yield the library of this test class of transactions, the same for all its tests, at the level of the class."""
    set_level(endpoint.bootstrap, request.cls.level)
    made = request.cls.library(endpoint.bootstrap)
    yield made
    made.close()
    set_level(endpoint.bootstrap, DEFAULT_LEVEL)
