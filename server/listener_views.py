"""The cluster as the clients of each Kafka listener of a process see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bmq.core.config import NodeConfig
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import Address
from bmq.meta.cluster.proxies import ClusterProxies
from bmq.meta.cluster.view import ClusterView
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.scopes import ProxyView


class ListenerViews:
    """The views of all listeners; they have the process's node id and settings in common."""

    def __init__(self, config: NodeConfig, view: ClusterView, catalog: Catalog) -> None:
        own = ProxyAddress(config.node_id, "", 0, config.zone)
        self._proxies = {
            listener.name: ClusterProxies(own, view, catalog, config, listener.name)
            for listener in config.kafka_listeners()
        }
        self.by_name = {name: ProxyView(config=config, proxies=proxies) for name, proxies in self._proxies.items()}
        """The view of each listener's clients, by its name."""
        self.first = next(iter(self.by_name.values()))
        """The view of the first listener, which requests of the process itself have too."""

    @property
    def node_id(self) -> int:
        return self.first.config.node_id

    @property
    def sends_away(self) -> bool:
        """True if Metadata names other proxies in place of this one to the clients of each listener."""
        return all(proxies.sends_away for proxies in self._proxies.values())

    def refresh(self) -> None:
        """Read the members and owners again, once view and catalog are loaded."""
        for proxies in self._proxies.values():
            proxies.refresh()

    def move(self, addresses: Mapping[str, Address]) -> None:
        """Publish the address of each listener, by its name, to this process's clients."""
        for name, address in addresses.items():
            self._proxies[name].move(replace(self._proxies[name].own, host=address.host, port=address.port))

    def set_member(self, is_member: bool) -> None:
        """Name this process in Metadata, or leave it out, as it is a member or not."""
        for proxies in self._proxies.values():
            proxies.set_member(is_member)

    def renumber(self, config: NodeConfig) -> None:
        """Adopt the settings with a new node id, after the process has joined its cluster again."""
        for view in self.by_name.values():
            view.renumber(config)
        for proxies in self._proxies.values():
            proxies.move(replace(proxies.own, node_id=config.node_id))
