"""What a stage releases before round 0, with and without one sample.

Whatever a stage gives clients to share has rows of its own for every sample: without one of them the others'
stay. And what it puts noise on with `Source.normal` is listened to: with a learning rate of nearly nothing,
the sums it noises move by no more than the clipping bound it states in the ledger.
"""

import copy
from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from fedpriv.audit.finding import Finding, judged, unasked
from fedpriv.audit.noise import Draw, drawn
from fedpriv.audit.spread import ROUNDING
from fedpriv.audit.taps import Bench, without
from fedpriv.stages.base import Stage

SMALL = {"latent": 8, "lr": 1e-30, "cache": False}  # of a stage, where it has such a value
_CHOICES = 6


@dataclass(frozen=True)
class Prepared:
    rows: list[Draw]  # of noise
    sums: list[Tensor]  # that got noise, a vector a release
    shared: Tensor | None  # [M, ...]
    bound: float | None  # the clipping bound stated in the ledger


def audit(bench: Bench) -> list[Finding]:
    if type(bench.trainer.stage).prepare is Stage.prepare:
        return []
    sizes = bench.trainer.setting.sizes
    whole, twice = _prepared(bench, None), _prepared(bench, None, rounds=2)
    repeated = len(twice.rows) - len(set(twice.rows))
    text = f"{len(twice.rows)} rows of noise before round 0, {repeated} of them drawn more than once"
    found = [judged("the stage's noise is drawn once", not repeated, text, repeated, 0)]
    largest, others, bound = 0.0, "", whole.bound
    for number in range(_CHOICES):
        client = number % len(sizes)
        place = (7 * number) % max(1, int(sizes[client]))
        fewer = _prepared(bench, (client, place))
        if whole.shared is not None and fewer.shared is not None:
            gone = int(sizes[:client].sum()) + place
            rest = torch.cat([whole.shared[:gone], whole.shared[gone + 1 :]])
            if not torch.allclose(rest, fewer.shared, atol=1e-4):
                others = f"without sample {place} of client {client} other shared samples move"
        if len(whole.sums) == len(fewer.sums):
            moves = (float((a - b).norm()) for a, b in zip(whole.sums, fewer.sums, strict=True))
            largest = max(largest, *moves, 0.0)
    text = others or "one's absence moves no other shared sample"
    found.append(judged("shared samples are their own", not others, text))
    if bound is None or bench.unit != "sample" or not whole.sums:
        return [
            *found,
            unasked("move of the stage's sums", "it states no clipping bound for sums of samples"),
        ]
    text = f"{largest / bound:.4g} times the stage's clipping bound"
    return [
        *found,
        judged("move of the stage's sums", largest <= bound * (1 + ROUNDING), text, largest / bound, 1.0),
    ]


def _prepared(bench: Bench, gone: tuple[int, int] | None, rounds: int = 1) -> Prepared:
    """A stage as small as it can be made, with or without a sample."""
    own = Bench(_small(bench.cfg, rounds), prepare=False)
    trainer = own.trainer
    trainer.engine.workers = 1  # so that what is drawn is drawn in order
    if gone is not None:
        trainer.train = without(trainer.train, *gone)
    with drawn() as (rows, likes):
        own.run.prepare()
    clips = [r.details["clip_norm"] for r in trainer.ledger.releases if r.details.get("clip_norm")]
    shared = trainer.train.shared
    return Prepared(
        rows, _grouped(likes), None if shared is None else shared[0].float(), clips[0] if clips else None
    )


def _small(cfg: DictConfig, rounds: int) -> DictConfig:
    own = copy.deepcopy(cfg)
    with open_dict(own):
        for name, value in {**SMALL, "rounds": rounds}.items():
            if OmegaConf.select(own, f"stage.{name}") is not None:
                own.stage[name] = value
    return own


def _grouped(likes: list[tuple[Draw, Tensor]]) -> list[Tensor]:
    """One vector a release: sums of one step, each with a key of its own."""
    groups: list[list[Tensor]] = []
    step, keys = -1, set[bytes]()
    for (key, _, number), like in likes:
        if number != step or key in keys:
            groups.append([])
            keys = set()
        step = number
        keys.add(key)
        groups[-1].append(like.flatten())
    return [torch.cat(group) for group in groups]
