"""Request dispatch, and the Produce and Fetch engine that proxies and brokers share."""
