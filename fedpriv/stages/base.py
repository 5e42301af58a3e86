"""What may happen before round 0, and what it adds to every round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from fedpriv.datasets.data import Data
from fedpriv.engine.batches import Plan
from fedpriv.engine.data import ClientData
from fedpriv.rounds.setting import Round

if TYPE_CHECKING:
    from fedpriv.rounds.trainer import Trainer


@dataclass(frozen=True)
class Origin:
    """Where a run's parts come from, for a stage that makes something of its own of them."""

    data: Data
    model: Callable[[], nn.Module]  # a fresh model, initialised from torch's global generator
    seed: int  # of the partition: runs that share it can share what is made before round 0


class Stage:
    def announce(self, trainer: "Trainer", origin: Origin) -> list[str]:
        """Refuse what cannot work and enter into the ledger what will be released; remarks for the user.
        Cheap: `fedpriv privacy` calls no more than this."""
        return []

    def prepare(self, trainer: "Trainer", origin: Origin) -> None:
        """Change the trainer's data or parts before round 0; release nothing round the ledger."""

    def mix(self, plan: Plan, round_: Round, data: ClientData) -> tuple[Plan, ClientData]:
        """The batches of a round and what they index; called with the same answer as often as one likes."""
        return plan, data

    def downlink(self, round_: Round) -> int:
        """Bytes sent to the participants besides the model."""
        return 0

    def summary(self) -> dict[str, Any]:
        """What belongs into summary.json."""
        return {}
