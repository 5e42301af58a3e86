"""How clients train under a mechanism: their batches, DP-SGD, and what is done after a local step."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine import batches
from fedpriv.engine.work import Private, Rows
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Setting


class LocalTraining:
    """Plain SGD over shuffled data; override where a mechanism trains otherwise."""

    def __init__(self, setting: Setting):
        self.setting = setting

    def plan(self, clients: np.ndarray, owned: Tensor, source: Source) -> batches.Plan:
        """Local batches, given the sample numbers each client owns [C, widest]: passes over shuffled data."""
        samples, steps = self.amounts(clients)
        return batches.shuffled(samples, self.setting.batch_size, steps, torch.as_tensor(clients), source)

    def amounts(self, clients: np.ndarray) -> tuple[Tensor, Tensor]:
        """How many samples each has and how many steps it takes, [C] each."""
        return torch.as_tensor(self.setting.sizes[clients]), torch.as_tensor(self.setting.steps[clients])

    def private(self, clients: np.ndarray, noise: Source) -> Private | None:
        """DP-SGD inside local training, or None."""
        return None

    def after_step(self, start: Tensor) -> Callable[[Tensor, Rows], None] | None:
        """What to do to the shared weights after every local step, given their start [C, D], or None."""
        return None
