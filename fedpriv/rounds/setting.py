"""Frozen facts that parts are told: about the whole run (`Setting`) and about one round (`Round`)."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine.layout import Layout
from fedpriv.privacy.accountants import Accountant


@dataclass(frozen=True)
class Setting:
    """What is fixed before round 0, once data, partition and model are known."""

    dataset: str  # its name
    clients: int
    rounds: int
    sample_rate: float
    batch_size: int
    sizes: np.ndarray  # [K] training samples of each client
    steps: np.ndarray  # [K] local steps a round
    epochs_steps: np.ndarray  # [K] batches in one pass over a client's data
    layout: Layout
    budgets: np.ndarray  # [K] epsilon of each client
    delta: float
    accountant: Accountant
    device: torch.device
    momentum: float = 0.0  # of local steps; it begins at zero every round
    schedule: list[np.ndarray] | None = None  # the clients of every round where that is fixed beforehand
    separation: int = 1  # the fewest rounds from one participation of a client to its next

    @property
    def planned(self) -> int:
        """Rounds a client is expected to take part in."""
        return int(np.ceil(self.rounds * self.sample_rate - 1e-9))

    @property
    def most(self) -> int:
        """The most rounds a client can be drawn for."""
        return self.rounds if self.schedule is None else self.planned

    def round(
        self,
        number: int,
        clients: np.ndarray,
        expected: float,
        constant_weights: bool,
        *,
        lr: float,
        noise: np.ndarray,
        start: Tensor,
    ) -> "Round":
        """A round of these clients [C]; `noise` is everybody's, [K]."""
        return Round(
            number=number,
            clients=clients,
            expected=expected,
            constant_weights=constant_weights,
            sizes=self.sizes[clients],
            steps=self.steps[clients],
            lr=lr,
            budgets=self.budgets[clients],
            noise=noise[clients],
            start=start,
        )


@dataclass(frozen=True)
class Round:
    """One round, as the server may know it: who takes part and constants that are public."""

    number: int
    clients: np.ndarray  # [C] client numbers in ascending order
    expected: float  # the public number of participants to normalise by
    constant_weights: bool  # whether weights must not depend on who takes part
    sizes: np.ndarray  # [C]
    steps: np.ndarray  # [C] local steps
    lr: float  # local learning rate
    budgets: np.ndarray  # [C]
    noise: np.ndarray  # [C] noise multipliers
    start: Tensor  # [D] the model that was broadcast

    def of(self, some: "slice | Tensor") -> "Round":
        """The same round, with some of its clients only."""
        where = some.numpy() if isinstance(some, Tensor) else some
        each = {n: getattr(self, n)[where] for n in ("clients", "sizes", "steps", "budgets", "noise")}
        return replace(self, **each)
