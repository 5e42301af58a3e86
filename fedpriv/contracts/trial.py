"""A check, and the facts a part is tried with: five clients and a model of six weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine.layout import Layout
from fedpriv.privacy import accountants
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

WIDTH, CLIENTS, DRAWS = 6, 5, 300
HUGE = 1e3


class Broken(Exception):
    """A promise that is not kept, in one line."""


class Untold(Exception):
    """A promise that cannot be tried here, and why."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], None]


def setting() -> Setting:
    samples = np.array([40, 10, 80, 30, 20])
    per_epoch = -(-samples // 10)
    return Setting(
        dataset="contract",
        clients=CLIENTS,
        rounds=4,
        sample_rate=0.8,
        batch_size=10,
        sizes=samples,
        steps=per_epoch,
        epochs_steps=per_epoch,
        layout=Layout({f"t{i}": torch.zeros(WIDTH // 3) for i in range(3)}),
        budgets=np.full(CLIENTS, 8.0),
        delta=1e-3,
        accountant=accountants.create("rdp"),
        device=torch.device("cpu"),
    )


def round_of(facts: Setting, clients: Any, constant: bool = True) -> Round:
    who = np.array(clients, dtype=np.int64)
    expected = facts.sample_rate * facts.clients if constant else float(max(1, len(who)))
    noise = np.ones(facts.clients)
    return facts.round(0, who, expected, constant, lr=0.1, noise=noise, start=torch.zeros(WIDTH))


def source(number: int = 0) -> Source:
    return Source(number.to_bytes(32, "little"))


def some_uploads(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def want(kept: bool, otherwise: str) -> None:
    if not kept:
        raise Broken(otherwise)
