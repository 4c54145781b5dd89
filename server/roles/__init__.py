"""The roles of one process, each with ``start``, ``drain`` and ``close``; ``server.node`` joins them in one order."""
