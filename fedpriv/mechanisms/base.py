"""What every DP variant decides: what is guaranteed, and what clients and server release.

Who takes part and pays is chosen in its facts (participation.py), how clients train in `training`
(training.py).
"""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedpriv.mechanisms.participation import FixedNumber
from fedpriv.mechanisms.training import LocalTraining
from fedpriv.parts.base import Part, by_client
from fedpriv.parts.declarations import ALONE, MechanismFacts, Wiring
from fedpriv.privacy.events import Unprotected
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.gaussian import END
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

DIAGNOSTICS = (
    "diagnostics, computed on raw data and not private: losses, accuracies and what a part remarks (such as "
    "ddp's `wrapped`) in metrics.csv and clients.csv, losses in the checkpoint, and how many samples of each "
    "class a client has in partition.csv and partition.png"
)
FLOATS = (
    f"finite precision: noise in floats, whose last bits are not hidden; that it ends at {END} deviations is "
    "paid for out of delta"
)
TUNING = "choosing options by looking at results on the same data"
Values = TypeVar("Values", bound=tuple[Any, ...])


class Mechanism(Part, ABC):
    """An ordinary one is its facts and three methods: `calibrate`, `client` and `server`."""

    facts: MechanismFacts
    training: LocalTraining  # how clients train; `calibrate` may set another

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> Guarantee:
        super().setup(setting, wiring)
        self.training = LocalTraining(setting)
        return self.calibrate(setting)

    @abstractmethod
    def calibrate(self, setting: Setting) -> Guarantee:
        """Calibrate the noise to the budgets and say what is guaranteed."""

    @by_client
    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """What leaves the clients, [C, D'], from the algorithm's messages (local minus broadcast), [C, D]."""
        return messages

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        """The update [D] from the aggregate [D']; of an empty round, from what nobody sends."""
        return aggregate


def unprotected(setting: Setting, flaw: str) -> Guarantee:
    """No guarantee, and why."""
    return Guarantee(
        unit="none",
        relation="none",
        sampler="none",
        noise=np.zeros(setting.clients),
        kinds=np.zeros(setting.clients, dtype=np.int64),
        claimed=[(Unprotected(),)],
        provable=None,
        flaws=(flaw,),
        not_covered=("everything",),
    )


def group_charges(values: list[Values]) -> tuple[np.ndarray, list[Values]]:
    """Number equal rows: which group each belongs to, and one row per group."""
    groups = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([groups[v] for v in values], dtype=np.int64), list(groups)


class NoPrivacy(Mechanism):
    """dp=none: plain federated learning (the papers' non-private baseline)."""

    facts = MechanismFacts(
        unit="none", replaces=False, participation=FixedNumber(), weights="any", passes_on=True
    )

    def calibrate(self, setting: Setting) -> Guarantee:
        return unprotected(setting, "no differential privacy: updates are sent as they are")
