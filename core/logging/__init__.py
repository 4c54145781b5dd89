"""The server's log: fields, formats, levels, and bounds on repeated lines."""
