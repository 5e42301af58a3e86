"""Messages as bad as a client could send them."""

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit.taps import Bench
from fedpriv.randomness.source import generator
from fedpriv.rounds.setting import Round

KINDS = ("large", "overflow", "one weight", "small")  # of messages


class Worst:
    """Messages as a client could send them at worst, each client's its own, whoever else is there."""

    def __init__(self, bench: Bench, kind: str, changed: int | None = None, factor: float = 1.0):
        self.seed, self.kind, self.changed, self.factor = bench.seed, kind, changed, factor
        self._kept: dict[tuple[int, int], Tensor] = {}

    def __call__(self, made: Tensor, round_: Round) -> Tensor:
        return (
            torch.stack([self.of(int(c), made.shape[1]) for c in round_.clients]).to(made)
            if len(made)
            else made
        )

    def of(self, client: int, width: int) -> Tensor:
        if (client, width) not in self._kept:
            row = torch.randn(width, generator=generator(self.seed, "audit", client))
            if client == self.changed:
                row = _worst(row, self.kind) * self.factor
            self._kept[client, width] = row
        return self._kept[client, width]


def neighbours(bench: Bench, client: int, kind: str) -> list[tuple[Worst, np.ndarray]]:
    """What is sent, and who is able to: with a client, and without it, that is gone, silent or opposite."""
    facts, able, fewer = bench.trainer.mechanism.facts, bench.everyone(), bench.everyone()
    there, other = Worst(bench, kind, client), Worst(bench, kind, client, -1.0)
    if not facts.replaces and facts.participation.secret:
        fewer[client] = False
    elif not facts.replaces:
        other = Worst(bench, "small", client, 0.0)  # that it takes part is known: it counts as zero
    return [(there, able), (other, fewer)]


def _worst(row: Tensor, kind: str) -> Tensor:
    if kind == "large":
        return row * 1e3
    if kind == "overflow":
        row = row * 1e30
        row[0], row[-1] = torch.inf, torch.nan
        return row
    if kind == "one weight":
        return torch.zeros_like(row).index_fill_(0, torch.tensor([len(row) // 2]), 1e6)
    return row * 1e-3
