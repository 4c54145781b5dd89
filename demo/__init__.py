"""``make demo``: a real data set sent and read through a real client, while the server is killed.

It stands beside ``bench`` and not in the ``bmq`` package: it needs a Kafka client and progress bars that the product
does not, and it uses the product only as a user does, by its command and its port.
"""
