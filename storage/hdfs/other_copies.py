"""Copies of a block on living datanodes without a place in the block's next pipeline.

``updatePipeline`` names the datanodes of the pipeline, and the NameNode has the copies on all others deleted.  A
datanode that lives and does not let this client in has the acknowledged bytes all the same.  If such datanodes leave
the pipeline with a single copy, the bytes would be on one disk where more disks have them.
"""

from __future__ import annotations

COPIES_ENOUGH = 2
"""Copies with which other datanodes are left out: the NameNode has the block copied again."""


class OtherCopies:
    """The copies outside of a pipeline, of one block with ``of_block`` copies."""

    def __init__(self, of_block: int) -> None:
        self._of_block = of_block
        self.elsewhere: set[str] = set()
        """Names of living datanodes with a copy that this client cannot use."""

    def __repr__(self) -> str:
        return f"<OtherCopies {sorted(self.elsewhere)} of {self._of_block}>"

    def refusal(self, kept: int) -> str:
        """Return the reason why a pipeline must not keep so few copies; empty if it may."""
        if self.elsewhere and kept < min(COPIES_ENOUGH, self._of_block):
            return f"{kept} of {self._of_block} replicas, and {', '.join(sorted(self.elsewhere))} live"
        return ""
