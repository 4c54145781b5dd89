"""The messages of the internal APIs, by the process that serves them.

``docs/design/cluster.md`` lists the APIs, with the sides that send and serve them.  Encoding:
``core.rpc.message``, ``core.rpc.message_fields``.

Every API has version 0.  A field that is added later is a tagged one, or comes with another version.
"""
