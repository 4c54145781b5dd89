"""Access to the HTTP port of a process, from its settings: the users are those of the Kafka endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from bmq.console.access.config import AccessConfig
from bmq.console.access.mechanisms import passwords_of_plain, passwords_of_scram, tokens_of_oauthbearer
from bmq.console.access.schemes import BASIC, BEARER, AuthenticationScheme, BasicScheme, BearerScheme, PasswordCheck
from bmq.core.clock import Clock, SystemClock
from bmq.core.config import HTTP_LISTENER, ConfigError, NodeConfig
from bmq.core.options import MECHANISM
from bmq.core.security.listener_settings import TABLE, ListenerSecurity
from bmq.core.security.scram import BY_NAME
from bmq.endpoint.authentication.accounts import ScramUsers
from bmq.endpoint.authentication.mechanism import MechanismContext, MechanismFactory, SaslMechanism
from bmq.endpoint.authentication.oauthbearer import make_oauthbearer
from bmq.endpoint.authentication.plain import PLAIN, make_plain

_NAME = f"listener.name.{HTTP_LISTENER.lower()}"


def now_ms() -> int:
    """Return the wall time in ms."""
    return time.time_ns() // 1_000_000


class HttpAccess:
    """The mechanisms by which the users of one HTTP port are known."""

    def __init__(
        self,
        config: NodeConfig,
        users: ScramUsers | None = None,
        clock: Clock | None = None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Make the mechanisms.  Raises ConfigError if a setting of theirs is wrong, or none can be used.

        ``users`` are the cluster's; without them the settings are checked only.
        """
        self._users = users
        self._config = config
        self._security = config.http_security()
        self._clock = clock or SystemClock()
        self._now_ms = now_ms
        self._running = AsyncExitStack()
        self._mechanisms: list[SaslMechanism] = []
        wanted: Mapping[str, Callable[[], AuthenticationScheme]] = {BASIC: self._basic, BEARER: self._bearer}
        self._schemes: Sequence[AuthenticationScheme] = [
            wanted[scheme]() for scheme in config.http_authentication if scheme in wanted
        ]

    def config(self) -> AccessConfig:
        """Return the settings of the port's gate."""
        config = self._config
        return AccessConfig(
            schemes=self._schemes,
            failed_login_delay_s=config.connection_failed_authentication_delay_ms / 1000,
            session_s=config.http_session_ms / 1000,
            metrics_ask=config.http_metrics_authentication,
        )

    async def start(self) -> None:
        """Begin what the mechanisms do in the background."""
        for mechanism in self._mechanisms:
            self._running.push_async_callback(mechanism.close)
            await mechanism.start()

    async def close(self) -> None:
        """End that.  Idempotent."""
        await self._running.aclose()

    def _basic(self) -> BasicScheme:
        enabled = self._security.get("sasl.enabled.mechanisms")
        checks: list[PasswordCheck] = []
        if PLAIN in enabled:
            checks.append(passwords_of_plain(self._make(PLAIN, make_plain), self._now_ms))
        scram = [BY_NAME[each] for each in enabled if each in BY_NAME]
        if scram and self._users is not None:
            checks.append(passwords_of_scram(scram, self._users))
        if not checks and not scram:
            raise ConfigError(
                f"http_authentication: basic needs passwords, and none of {', '.join(enabled)} has them; give"
                f" {_NAME}.sasl.enabled.mechanisms=SCRAM-SHA-512"
            )
        return BasicScheme(checks)

    def _bearer(self) -> BearerScheme:
        return BearerScheme(tokens_of_oauthbearer(self._make("OAUTHBEARER", make_oauthbearer), self._now_ms))

    def _make(self, name: str, make: MechanismFactory) -> SaslMechanism:
        mechanism = make(
            MechanismContext(
                mechanism=name,
                listener=HTTP_LISTENER,
                protocol=self._security.protocol,
                settings=settings_of(self._security, name),
                clock=self._clock,
            )
        )
        self._mechanisms.append(mechanism)
        return mechanism


def settings_of(security: ListenerSecurity, mechanism: str) -> dict[str, str]:
    """Return the settings of a mechanism by Kafka's names, as texts."""
    keys = [key for key, option in TABLE.items() if option.metadata["scope"] == MECHANISM]
    return {key: _text(security.for_mechanism(mechanism, key)) for key in keys}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
