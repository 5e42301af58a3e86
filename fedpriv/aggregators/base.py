"""A linear aggregator: one weight per participant. Override `weights`, or `__call__` for anything else."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.setting import Round, Setting


class Aggregator:
    not_covered: tuple[str, ...] = ()  # what it takes as public that a DP variant does not protect
    remarks: tuple[str, ...] = ()  # warnings for the user, known after `setup`
    updates_only = False  # whether it needs updates, so that whole models must not be given to it
    models = False  # whether uploads are whole models instead of updates; a mechanism that sends them says so

    def setup(self, setting: Setting) -> None:
        self.setting = setting

    def accepts(self, clients: np.ndarray) -> bool:
        """Whether a round of these clients [C] can be aggregated; if not, the round is drawn again."""
        return True

    def draw(self, round_: Round, generator: torch.Generator) -> None:
        """Draw what is random about the round, before its uploads are seen."""

    def weights(self, round_: Round) -> Tensor:
        """Each participant's weight, [C]; may use only what the server knows."""
        raise NotImplementedError

    def part(self, round_: Round) -> float:
        """What makes the round's aggregate its part of an average over all clients.

        Times that, a participant's weight is the one it has among everybody. Here for equal weights, and for
        weights that change from round to round, which have no such average.
        """
        return round_.expected / self.setting.clients

    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        """[C, D'] -> [D']; an empty round gives zero."""
        return self.weights(round_).to(uploads) @ uploads

    def largest_weight(self, round_: Round) -> float | None:
        """The most any one client can weigh, over all rounds like this one; None: no such bound.

        A mechanism that adds noise on the server (cdp) calibrates to it, so it must not depend on who
        happens to take part.
        """
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


def constant(value: float, round_: Round) -> Tensor:
    return torch.full((len(round_.clients),), value)
