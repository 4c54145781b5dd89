"""`bmq` that supports a lower `transaction.version`: ``python -m tests.integration.older_bmq LEVEL BMQ serve ...``.

A prefix of ``BmqServer``'s command: BMQ, the program that would have run, is ignored.  The process announces the lower
range, is not admitted above it, and lists it in ApiVersions, as a version of before does.
"""

import sys

from bmq.core import features
from bmq.core.features import TRANSACTION_VERSION, Feature, FeatureTable, LevelRange

if __name__ == "__main__":
    level = int(sys.argv[1])
    downgrades = frozenset(each for each in features.FEATURES.features[0].safe_downgrades if max(each) <= level)
    older = Feature(TRANSACTION_VERSION, LevelRange(0, level), downgrades)
    others = tuple(each for each in features.FEATURES.features if each.name != TRANSACTION_VERSION)
    features.FEATURES = FeatureTable((older, *others))
    # Imported after the table was replaced: other modules take it as they are imported.
    from bmq.cli.main import main

    sys.exit(main(sys.argv[3:]))
