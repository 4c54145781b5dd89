"""Access to the HTTP port: who a client is, what it may do, and the console's log-in."""
