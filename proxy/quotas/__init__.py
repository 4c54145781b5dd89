"""Quotas of clients, enforced: rates, allowances, throttle times, and the proxies' shares of what is the cluster's."""
