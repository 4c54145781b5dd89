"""`bmq`, whose server is watched: ``python -m tests.integration.watched_bmq FILE BMQ serve ...``.

A prefix of ``BmqServer``'s command: BMQ, the program that would have run, is ignored.  FILE gets a line for each long
stretch of the event loop (``tests.scale.watched_server``).
"""

import sys
from pathlib import Path

from bmq.cli.main import main
from tests.scale.watched_server import watch_server

if __name__ == "__main__":
    watch_server(Path(sys.argv[1]))
    sys.exit(main(sys.argv[3:]))
