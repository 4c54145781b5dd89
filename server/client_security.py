"""The security of one process's clients: who they are, what they may do, and how much."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from bmq.core.aio.standstill import Standstill
from bmq.core.audit.log import Audit
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.request import Dispatch
from bmq.core.rpc.peers import Peers
from bmq.endpoint.authentication.gate import AuthenticationGate
from bmq.endpoint.authentication.mechanisms import make_gate
from bmq.endpoint.authentication.token_accounts import TokenAccounts
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Authorizer
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import KeyValue
from bmq.meta.kv_for_clients import KvForClients
from bmq.meta.security.acls import AclStore
from bmq.meta.security.delegation_tokens import DelegationTokens, TokenLifetimes
from bmq.meta.security.quotas_view import QuotasView
from bmq.meta.security.scram_credentials import ScramCredentials
from bmq.proxy.quotas.connection_bounds import ConnectionBounds
from bmq.proxy.quotas.connection_rates import ConnectionRates
from bmq.proxy.quotas.request_quotas import RequestQuotas
from bmq.proxy.quotas.sharing import QuotaShares


class ClientSecurity:
    """Views of the store's records of security, and what this process makes of them.

    ``acls``, ``tokens``: None where the settings switch them off.
    """

    def __init__(
        self,
        config: NodeConfig,
        kv: KeyValue,
        clock: Clock,
        view: ClusterView,
        peers: Peers,
        on_failed: Callable[[str], None],
        standstill: Standstill,
    ) -> None:
        """``standstill`` is looked at before each write for a client.

        ``on_failed`` is called with the reason if a view stops: the process must end.
        """
        kv = KvForClients(kv, standstill)
        self._config = config
        self._clock = clock
        self.acls = AclStore(kv, config.cluster, on_failed) if config.authorizer_class_name else None
        self.authorizer = _authorizer(config, self.acls)
        self.scram_users = ScramCredentials(kv, config.cluster, on_failed)
        self.tokens = _tokens(config, kv, clock, on_failed)
        self.client_quotas = QuotasView(kv, config.cluster, on_failed)
        self._shares = QuotaShares(view, peers, clock)
        self.quotas = RequestQuotas(self.client_quotas, clock, self._shares.of)
        self.connection_rates = ConnectionRates(
            self.client_quotas, clock, config.max_connection_creation_rate,
            {name: each.get("max.connection.creation.rate") for name, each in config.listener_security().items()},
        )  # fmt: skip
        self.connection_bounds = ConnectionBounds(self.client_quotas)

    def make_gates(
        self, endpoints: Mapping[str, Dispatch], metrics: PortCounters, audit: Audit
    ) -> dict[str, AuthenticationGate]:
        """Return a gate before the endpoint of each SASL listener, by the listeners' names, to be started.

        Raises ConfigError if a mechanism's setting is wrong.
        """
        config = self._config
        if PROXY not in config.roles:
            return {}
        accounts = TokenAccounts(self.tokens) if self.tokens is not None else None
        return {
            name: make_gate(
                endpoints[name], security, self._clock, metrics,
                delay_ms=config.connection_failed_authentication_delay_ms, users=self.scram_users, tokens=accounts,
                audit=audit,
            )
            for name, security in config.listener_security().items()
            if security.has_sasl
        }  # fmt: skip

    async def start(self) -> None:
        """Start following the store.  The caller must ``close`` this even if it fails.

        Raises KvError if the store does not answer.
        """
        config = self._config
        if self.acls is not None:
            await self.acls.start()
        await self.client_quotas.start()
        if PROXY in config.roles:
            self._shares.start(self.quotas.holdings)
        if self.tokens is not None:
            await self.tokens.start()
        if PROXY in config.roles or "basic" in config.http_authentication:
            await self.scram_users.start()

    async def close(self) -> None:
        """Stop following.  All parts are closed even if one fails; its error is raised at the end.  Idempotent."""
        async with contextlib.AsyncExitStack() as parts:  # closed from the last to the first
            if self.acls is not None:
                parts.push_async_callback(self.acls.close)
            parts.push_async_callback(self.client_quotas.close)
            parts.push_async_callback(self._shares.close)
            if self.tokens is not None:
                parts.push_async_callback(self.tokens.close)
            parts.push_async_callback(self.scram_users.close)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The store's keys that this version cannot read, with the reasons."""
        views = (self.scram_users, self.tokens, self.acls, self.client_quotas)
        return {key: why for view in views if view is not None for key, why in view.unreadable.items()}


def _authorizer(config: NodeConfig, acls: AclStore | None) -> Authorizer:
    """Return the authorizer of this process's clients; it forgets its answers with each change of ACLs."""
    if acls is None:
        return ALLOW_ALL
    made = CachedAuthorizer(
        acls.index, config.super_principals(), allows_without_acls=config.allow_everyone_if_no_acl_found,
        are_loaded=lambda: acls.is_loaded,
    )  # fmt: skip
    acls.subscribe(made.forget)
    return made


def _tokens(
    config: NodeConfig, kv: KeyValue, clock: Clock, on_failed: Callable[[str], None]
) -> DelegationTokens | None:
    """Return the delegation tokens; None in a process that has no proxy's role, or not their secret."""
    secret = config.delegation_token_secret_key
    if PROXY not in config.roles or not secret:
        return None
    lifetimes = TokenLifetimes(
        max_ms=config.delegation_token_max_lifetime_ms,
        expiry_ms=config.delegation_token_expiry_time_ms,
        check_ms=config.delegation_token_expiry_check_interval_ms,
    )
    return DelegationTokens(kv, config.cluster, clock, secret, lifetimes, on_failed)
