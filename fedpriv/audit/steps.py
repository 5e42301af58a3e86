"""Unit sample: what each local step of DP-SGD releases, looked at through the engine.

A round's work is trained again with all learning rates zero but one, so that every step is seen at the same
weights: what the weights move by is that step's clipped sum and noise.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.engine.base import Engine
from fedpriv.engine.batches import Plan
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Work

STEPS = 3  # of a round that are looked at


def part_of(work: Work, clients: list[int], most: int = STEPS) -> Work:
    """The first steps of some of the participants."""
    order = work.clients.tolist()
    rows = torch.tensor([order.index(client) for client in clients])
    plan, private = work.plan.rows(rows), work.private
    assert private is not None
    steps = min(most, plan.index.shape[1])
    shared = None if plan.shared is None else plan.shared[:, :steps]
    cut = Plan(plan.index[:, :steps], plan.size[:, :steps], plan.active[:, :steps], shared)
    here = rows.to(work.rows.device)
    return replace(
        work,
        rows=work.rows[here],
        buffers=work.buffers[here],
        clients=work.clients[rows],
        plan=cut,
        private=replace(private, noise_std=private.noise_std[here]),
        lr=work.lr[:steps],
    )


def emptied(work: Work) -> Work:
    """The same with nobody in any batch."""
    plan = work.plan
    return replace(work, plan=Plan(plan.index, torch.zeros_like(plan.size), plan.active))


def alone(work: Work, place: int) -> Work:
    """The same with one sample of the first participant as all that is in any batch."""
    plan = work.plan
    index, size = plan.index.clone(), torch.zeros_like(plan.size)
    index[0, :, 0], size[0] = place, plan.active[0].to(size)
    return replace(work, plan=Plan(index, size, plan.active))


def released(engine: Engine, work: Work, data: ClientData) -> Tensor:
    """What every step adds to every client's sum, [S, C, P]."""
    assert work.private is not None
    out = []
    for step in range(len(work.lr)):
        rates = [0.0] * len(work.lr)
        rates[step] = work.private.lot
        once = replace(
            work,
            rows=work.rows.clone(),
            buffers=work.buffers.clone(),
            lr=rates,
            home_lr=None,
            momentum=0.0,
            weight_decay=0.0,
            correction=None if work.plain else _nothing,  # so that the engine goes the same way
            after_step=None,
        )
        engine.train(once, data)
        out.append(work.rows - once.rows)
    return torch.stack(out)


def _nothing(rows: Tensor, here: Rows) -> Tensor:
    return torch.zeros_like(rows)
