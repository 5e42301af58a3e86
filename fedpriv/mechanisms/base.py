"""What every DP variant decides. The base class is the identity: no clipping, no noise, no guarantee."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.engine import batches
from fedpriv.engine.work import Private, Rows
from fedpriv.privacy.events import Unprotected
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.gaussian import END
from fedpriv.randomness.source import Source
from fedpriv.setting import Round, Setting
from fedpriv.uploads.plain import Plain

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


class Mechanism:
    unit = "none"  # what is protected: one "sample", one "client", or nothing
    replaces = False  # whether neighbours are told apart by replacing data, not by adding or removing it
    per_sample = False  # whether local training clips single samples
    constant_weights = False  # whether weights must not depend on who takes part
    bounded_aggregate = False  # whether the noise is calibrated to one client's weight in the aggregate

    def setup(self, setting: Setting) -> Guarantee:
        """Calibrate the noise to the budgets and say what is guaranteed."""
        self.setting = setting
        return Guarantee(
            unit=self.unit,
            relation="none",
            sampler="none",
            noise=np.zeros(setting.clients),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=[(Unprotected(),)],
            provable=None,
            flaws=("no differential privacy: updates are sent as they are",),
            not_covered=("everything",),
        )

    def check(self, aggregator: Aggregator, upload: Plain) -> None:
        """Refuse parts this variant's guarantee does not hold with; `setup` has been called."""

    def diagnostics(self) -> dict[str, float]:
        """Remarkable numbers of the round just done, for the record; the same names every round."""
        return {}

    # -- who takes part, and with which batches

    def sample(self, number: int, eligible: np.ndarray, source: Source) -> tuple[np.ndarray, float]:
        """The clients of round `number` in ascending order, and the public number to normalise by."""
        if self.setting.schedule is not None:
            dealt = self.setting.schedule[number]
            return dealt[eligible[dealt]], float(len(dealt))
        return self.draw(eligible, source)

    def draw(self, eligible: np.ndarray, source: Source) -> tuple[np.ndarray, float]:
        """A fixed number without replacement: the server sees who takes part, nothing is amplified."""
        wanted, able = (
            max(1, round(self.setting.sample_rate * self.setting.clients)),
            np.flatnonzero(eligible),
        )
        chosen = able[source.uniforms(able, 1)[:, 0].numpy().argsort(kind="stable")[:wanted]]
        return np.sort(chosen), float(len(chosen))

    def plan(self, clients: np.ndarray, owned: Tensor, source: Source) -> batches.Plan:
        """Local batches, given the sample numbers each client owns [C, widest]: passes over shuffled data."""
        samples, steps = (torch.as_tensor(a[clients]) for a in (self.setting.samples, self.setting.steps))
        return batches.shuffled(samples, self.setting.batch_size, steps, torch.as_tensor(clients), source)

    # -- on the client

    def local(self, clients: np.ndarray, noise: Source) -> Private | None:
        """DP-SGD inside local training, or None."""
        return None

    def after_step(self, start: Tensor) -> Callable[[Tensor, Rows], None] | None:
        """What to do to the shared weights after every local step, given their start [C, D], or None."""
        return None

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """What leaves the clients, [C, D'], from the algorithm's messages (local minus broadcast), [C, D]."""
        return messages

    def charged(self, clients: np.ndarray) -> np.ndarray:
        """Whose ledger pays for the round."""
        return clients

    @property
    def rounds_charged(self) -> int:
        """How many rounds a client will have paid for at the end of a run."""
        return self.setting.planned

    # -- on the server

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        """The update [D] from the aggregate [D']."""
        return aggregate

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


def group_charges(values: list[Values]) -> tuple[np.ndarray, list[Values]]:
    """Number equal rows: which group each belongs to, and one row per group."""
    groups = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([groups[v] for v in values], dtype=np.int64), list(groups)


class NoPrivacy(Mechanism):
    """dp=none: plain federated learning (the papers' non-private baseline)."""
