"""The seam between an endpoint and the quotas of its clients (``proxy.quotas``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from bmq.core.net.request import Request, Response


class RequestQuotas(Protocol):
    """The quotas of all clients of an endpoint."""

    @property
    def is_active(self) -> bool:
        """False if nobody has a quota: ``serve`` need not be called then."""

    def serve(
        self, request: Request, size: int, call: Callable[[], Response | Awaitable[Response]]
    ) -> Response | Awaitable[Response]:
        """Serve a request of ``size`` bytes by ``call``, within its client's quotas.

        Sets ``request.quota`` before the call if the client has one.
        """


class _NoQuotas:
    """The quotas of processes of the cluster, and of requests of this process."""

    is_active = False

    def serve(
        self, request: Request, size: int, call: Callable[[], Response | Awaitable[Response]]
    ) -> Response | Awaitable[Response]:
        return call()


NO_QUOTAS: RequestQuotas = _NoQuotas()
