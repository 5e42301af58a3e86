"""Rounds that share noise: all of a client's participations are one release, so they are looked at together.

The noise of the whole run is drawn under many keys, and its covariance between rounds is what they share.
What one client changes in all of its rounds, without noise, is measured in that covariance, and is at most 1
over the multiplier that so many participations are charged with. A client's changes point all in one
direction, or in such ones that they add up to the most.
"""

import math

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit.finding import Finding
from fedpriv.audit.moves import Largest, entries, multiplier
from fedpriv.audit.noise import quiet
from fedpriv.audit.spread import moved_over_rounds
from fedpriv.audit.taps import Bench, Messages
from fedpriv.audit.worst import KINDS, Worst, neighbours

ROUNDS = 64  # of a run, at most
_KEYS, _NUMBERS = 6, 40_000  # runs of noise, and numbers of noise, at least


def audit(bench: Bench, choices: int) -> list[Finding]:
    noise = _noise(bench)
    move = Largest("move of all rounds of a client together")
    between = noise.transpose(0, 1).flatten(1).double()  # [T, n P]
    precision = torch.linalg.pinv(between @ between.T / between.shape[1])
    takes = _takes_part(bench)
    for number, client in enumerate(_worst_placed(takes, precision, choices)):
        kind = KINDS[number % len(KINDS)]
        one, other = (_updates(bench, 0, m, able) for m, able in neighbours(bench, client, kind))
        count = int(takes[client].sum())
        z = multiplier(bench.charge(client), count)
        if z is None or not count:
            continue
        here = Largest(move.check)
        text = f"{count} rounds of client {client}, messages that are {kind}"
        for signs in (torch.ones(len(noise[0])), _signs(one - other, precision)):
            here.see(moved_over_rounds((one - other) * signs[:, None], noise).times(z), text)
        move.see(here.found, text)
    return [move.finding(entries(bench))]


def _updates(bench: Bench, key: int, messages: Messages, able: np.ndarray, loud: bool = False) -> Tensor:
    """What all rounds release, [T, P]."""
    bench.reset(key)
    out = []
    for _ in range(min(ROUNDS, bench.trainer.setting.rounds)):
        if loud:
            heard = bench.round(messages=messages, able=able, train=False)
        else:
            with quiet():
                heard = bench.round(messages=messages, able=able, train=False)
        assert heard.update is not None
        out.append(heard.update.double())
    return torch.stack(out)


def _noise(bench: Bench) -> Tensor:
    """Of whole runs, [n, T, P]."""
    able, messages = bench.everyone(), Worst(bench, "small")
    bare = _updates(bench, 0, messages, able)
    keys = max(_KEYS, math.ceil(_NUMBERS / bare.shape[1]), math.ceil(20 * len(bare) / bare.shape[1]))
    return torch.stack([_updates(bench, key, messages, able, loud=True) - bare for key in range(keys)])


def _takes_part(bench: Bench) -> np.ndarray:
    """Who is in which round, [K, T]."""
    setting = bench.trainer.setting
    bench.reset()
    found = np.zeros((setting.clients, min(ROUNDS, setting.rounds)), dtype=bool)
    with quiet():
        for number in range(found.shape[1]):
            found[bench.round(able=bench.everyone(), train=False).clients, number] = True
    return found


def _worst_placed(takes: np.ndarray, precision: Tensor, choices: int) -> list[int]:
    """Clients whose rounds share the most noise: one for each kind of message, or more."""
    rows = takes.astype(float)
    lengths = np.einsum("ks,st,kt->k", rows, precision.numpy(), rows)
    order = np.argsort(-lengths, kind="stable")[: max(1, choices // len(KINDS))]
    return [int(client) for client in order for _ in KINDS]


def _signs(change: Tensor, precision: Tensor) -> Tensor:
    """Of rounds [T], so that their changes add up to the most, nearly."""
    lengths = change.norm(dim=1)
    leading = torch.linalg.eigh(precision * lengths[:, None] * lengths)[1][:, -1]
    return torch.where(leading < 0, -1.0, 1.0)
