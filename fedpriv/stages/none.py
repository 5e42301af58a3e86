"""No stage before training. The base of every stage."""

from typing import Any


class NoStage:
    def prepare(self, trainer: Any) -> None:
        """Change the trainer's data or parts before round 0; release nothing round the ledger."""
