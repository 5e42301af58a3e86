"""Is noise fresh: of rounds, clients, steps and keys, and in the parts of one row?"""

import math

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit.finding import Finding, judged, unasked
from fedpriv.audit.noise import quiet
from fedpriv.audit.spread import SURE, alike, within
from fedpriv.audit.taps import Bench
from fedpriv.audit.worst import Worst


def fresh(rows: list[Tensor], names: list[str], other: tuple[Tensor, str] | None = None) -> list[Finding]:
    """No noise is like another: of rounds, clients, steps and keys, nor of parts of one row."""
    if not rows:
        return [unasked("noise is fresh", "there is none to compare")]
    if other is not None:
        rows = [*rows, *other[0]]
        names = [*names, *(f"{other[1]}, {i + 1}" for i in range(len(other[0])))]
    unlike: dict[str, Tensor] = {}
    for name, row in zip(names, rows, strict=True):  # a client may have been chosen twice
        unlike.setdefault(name, row)
    table = torch.stack(list(unlike.values()))
    if not bool(table.any()):
        return [judged("noise is fresh", False, "there is no noise at all", 0.0)]
    between, inside = alike(table, list(unlike)), within(table[0])
    text = f"largest correlation {between.value:.3f} between {' and '.join(between.pair)}"
    parts = f"largest correlation {inside.value:.3f} between {' and '.join(inside.pair)}"
    return [
        judged(
            "noise of rounds, clients, steps and keys is fresh",
            not between.found,
            text,
            between.value,
            between.most,
        ),
        judged("noise of tensors is fresh", not inside.found, parts, inside.value, inside.most),
    ]


def no_less(noise: Tensor, usual: Tensor, what: str) -> list[Finding]:
    """Noise [S, C, P] of a special case is as wide as the usual one."""
    have, want = (float(t.double().square().mean().sqrt()) for t in (noise, usual))
    error = SURE / math.sqrt(noise.numel())
    text = f"{what}: noise of deviation {have:.4g}, elsewhere {want:.4g}"
    return [judged("empty batches are noised alike", have >= want * (1 - error), text, have, want)]


def of_uploads(bench: Bench, able: np.ndarray) -> tuple[list[Tensor], list[str]]:
    """The noise of what several clients send in two rounds and under two keys."""
    rows, names, messages = [], [], Worst(bench, "small")
    for key, round_ in ((0, 0), (0, min(1, bench.trainer.setting.rounds - 1)), (1, 0)):
        pair = []
        for silent in (True, False):
            bench.reset(key, round_)
            if silent:
                with quiet():
                    pair.append(bench.round(messages=messages, able=able, train=False))
            else:
                pair.append(bench.round(messages=messages, able=able, train=False))
        assert pair[0].private is not None and pair[1].private is not None
        for position, client in enumerate(pair[0].clients[:4]):
            rows.append((pair[1].private[position] - pair[0].private[position]).double())
            names.append(f"round {round_ + 1}, key {key}, client {client}")
    return rows, names


def of_answers(bench: Bench) -> list[Finding]:
    """Answers at random: how far they lean is `audit mechanism`'s; here whether they are drawn afresh."""
    able, made = bench.everyone(), []
    for number in range(12):
        bench.reset(number)
        heard = bench.round(messages=lambda m, r: 0 * m, able=able, train=False)
        assert heard.private is not None
        made.append({int(c): row.double() for c, row in zip(heard.clients, heard.private, strict=True)})
    common = sorted(set.intersection(*(set(m) for m in made)))[:4]
    found = [
        unasked(
            "move of what leaves a client", "it is answered at random; `audit mechanism` counts the answers"
        )
    ]
    if not common:
        return found
    table = torch.stack([torch.stack([m[c] for c in common]) for m in made])  # [keys, clients, D]
    rest = table - table.mean(0)
    if not bool(rest.any()):
        return [*found, judged("noise is fresh", False, "answers are the same under every key", 0.0)]
    names = [f"client {c}" for c in common]
    between = alike(rest.transpose(0, 1).flatten(1), names)
    text = f"largest correlation {between.value:.3f} between {' and '.join(between.pair)}"
    return [
        *found,
        judged("answers of clients are fresh", not between.found, text, between.value, between.most),
    ]
