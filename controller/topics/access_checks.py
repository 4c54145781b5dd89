"""Rights on a topic's files, when it is created or changed: refused if storage refuses, given before the first file.

Rights that a request names are tried on storage first.  So its client learns of a missing group, and of a group that
this process may not set.  Rights from a default of brokers stop nobody from creating a topic: the walk
(``access_walks``) reports them and goes on trying.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bmq.controller.topics.access import AccessDefaults
from bmq.core.config import NodeConfig
from bmq.core.errors import RequestError
from bmq.core.file_access import CONFIGS, NO_ACCESS, Access, access_of
from bmq.core.logging.fields import fields
from bmq.meta import topic_configs
from bmq.meta.catalog import Catalog, Topic
from bmq.storage.access_files import AccessFiles

_log = logging.getLogger(__name__)


class AccessChecks:
    """The rights of topics that this leader creates and changes."""

    def __init__(self, catalog: Catalog, config: NodeConfig, files: AccessFiles | None) -> None:
        """``files``: None if nothing is checked nor prepared."""
        self._catalog = catalog
        self._config = config
        self._files = files

    def access(self, topic: Topic) -> Access:
        """Return the rights in force on the topic's files."""
        return AccessDefaults.of(self._catalog, self._config).access(topic)

    async def check(self, topic: Topic, before: Mapping[str, str]) -> None:
        """Raise RequestError INVALID_CONFIG if the topic's own configs ask for what storage refuses.

        Nothing is tried if they ask for no more than ``before``.
        """
        if self._files is not None and any(topic.configs.get(name, "") != before.get(name, "") for name in CONFIGS):
            await self._try(self.access(topic))

    async def check_defaults(self, wanted: Mapping[str, str], current: Mapping[str, str]) -> None:
        """Raise RequestError INVALID_CONFIG if new defaults of brokers ask for what storage refuses."""
        servers = {name: topic_configs.TABLE[name].server for name in CONFIGS}
        if self._files is not None and any(wanted.get(each) != current.get(each) for each in servers.values()):
            await self._try(access_of({name: wanted.get(server, "") for name, server in servers.items()}))

    async def _try(self, access: Access) -> None:
        assert self._files is not None, "checked by the callers"
        if access != NO_ACCESS:
            await self._files.check(access)

    async def prepare(self, topic: Topic) -> None:
        """Make a new topic's folder with its rights, so that no file is ever in a folder with more readers."""
        access = self.access(topic)
        if self._files is None or not access.is_given:
            return
        try:
            await self._files.prepare(topic.name, topic.topic_id, access)
        except RequestError as error:
            _log.warning(
                "a new topic's folder has not the owner, group and mode that it is to have yet",
                extra=fields(topic=topic.name, error=error.message),
            )

    async def withdraw(self, topic: Topic) -> None:
        """Remove the folder that was prepared for a topic that exists by another id."""
        if self._files is not None and self.access(topic).is_given:
            await self._files.withdraw(topic.name, topic.topic_id)
