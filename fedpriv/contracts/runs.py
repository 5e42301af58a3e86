"""What every part promises in a small run on digits."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from omegaconf import DictConfig

from fedpriv.building import build
from fedpriv.contracts.trial import (
    Check,
    Untold,
    want,
)
from fedpriv.rounds.trainer import Trainer


def run_checks(cfg: DictConfig) -> Iterator[Check]:
    def trainer() -> Trainer:
        return build(copy.deepcopy(cfg)).trainer

    def trained(run: Trainer, who: np.ndarray) -> None:
        """A round with these clients able, [K] bool."""
        run.ledger.eligible = lambda: who  # type: ignore[method-assign]
        before = run.theta
        result = run.round()
        want(run.theta.shape == before.shape, "the model changes its shape")
        want(
            run.theta.dtype == before.dtype and run.theta.device == before.device, "the model moves elsewhere"
        )
        want(bool(run.theta.isfinite().all()), f"a round of {len(result.clients)} clients: not finite")

    def rounds() -> None:
        run = trainer()
        for _ in range(2):
            trained(run, np.ones(run.setting.clients, dtype=bool))

    def few(count: int) -> None:
        run = trainer()
        orders = [np.roll(np.arange(run.setting.clients), -first) for first in range(run.setting.clients)]
        able = next((o[:count] for o in orders if run.aggregator.accepts(np.sort(o[:count]))), None)
        if able is None:
            raise Untold("its aggregator does without such rounds")
        trained(run, np.isin(np.arange(run.setting.clients), able))

    def state() -> None:
        one, other = trainer(), trainer()
        one.round()
        other.load(copy.deepcopy(one.state()))
        one.round(), other.round()
        want(torch.equal(one.theta, other.theta), "a run that was stopped goes on with other numbers")

    yield Check("in a run: two rounds", rounds)
    yield Check("in a run: a round of one client", lambda: few(1))
    yield Check("in a run: an empty round", lambda: few(0))
    yield Check("in a run: stopped and continued it is the same", state)
