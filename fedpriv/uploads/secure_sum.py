"""A secure sum: the server learns the sum modulo 2^bits of integer uploads, and nothing of a single one.

`ideal` computes the sum that masking yields. `masked` really masks (Bonawitz et al. 2017) over a sparse graph
(Bell et al. 2020): participants sit on a random circle, each shares a seed with its k nearest; of every pair
one adds and the other subtracts the same uniform vector, so all masks cancel in the sum. If a participant
vanishes, its neighbours reveal the seeds they shared with it and the server removes those masks. A round is
refused (nothing is released, the model stays) when more vanish than `tolerance` allows, for too little noise
would be left, or when those who remain are no longer connected, for masks would no longer hide them. A round
that somebody or nobody alone takes part in is not refused: the sum of one has all the noise.

Outsiders see refused rounds, and how much noise the shares of those who remain come to: both tell how many
took part. So where clients may vanish nothing is amplified against outsiders either.

This simulates the protocol of an honest-but-curious server: keys are not agreed upon but drawn, and the
second masks that protect an upload arriving after it was given up are left out.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fedpriv.accelerator import there
from fedpriv.errors import UserError
from fedpriv.parts.declarations import SHARES, UploadFacts
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round
from fedpriv.uploads.base import Upload

SEED_BYTES = 32


@dataclass(frozen=True)
class Sent:
    """What reaches the server: uploads of those who remain, and seeds their neighbours revealed."""

    uploads: Tensor  # [survivors, j]
    revealed: list[tuple[Source, int]]  # (seed, sign with which it is still in the sum)
    refused: bool


class SecureSum(Upload):
    def __init__(
        self,
        *,
        protocol: Literal["ideal", "masked"] = "ideal",
        neighbours: int | None = None,
        dropout: float = 0.0,
        tolerance: float = 0.0,
    ):
        for name, value in (("dropout", dropout), ("tolerance", tolerance)):
            if not 0 <= value < 1:
                raise UserError(f"upload.{name}={value:g}: must be at least 0 and below 1")
        if neighbours is not None and neighbours < 2:
            raise UserError(f"upload.neighbours={neighbours}: every participant needs at least 2")
        self.protocol, self.neighbours = protocol, neighbours
        self.dropout, self.tolerance = dropout, tolerance
        self.facts = UploadFacts(
            takes=SHARES,
            mixes="rows",
            # The noise, or there being a sum at all, then depends on how many take part and how many stay.
            shows_cohort=dropout > 0 or tolerance > 0,
            sum_only=protocol == "ideal" and not dropout,
            tolerance=tolerance,
        )
        self._dropped = self._refused = 0

    @property
    def bits(self) -> int:
        assert self.wiring.bits is not None  # shares have them
        return self.wiring.bits

    def amplify(self, guarantee: Guarantee) -> Guarantee:
        server, outsider = (guarantee.observers.get(name) for name in ("server", "outsider"))
        if not self.facts.shows_cohort or server is None or outsider is None:
            return guarantee
        lesser = replace(server, sees=f"{outsider.sees}: less than the server")
        return replace(guarantee, observers={"server": server, "outsider": lesser})

    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[Sent, int]:
        count = len(messages)
        gone = source.of("vanish").below(self.dropout, round_.clients, 1)[:, 0].numpy()  # [C]
        here = there(np.flatnonzero(~gone), messages.device)
        pairs = self._pairs(count, source)
        self._dropped = int(gone.sum())
        few = len(here) < least(count, self.tolerance) or not _connected(pairs, gone)
        refused = bool(count) and few
        self._refused = int(refused)
        size = len(here) * math.ceil(messages.shape[1] * self.bits / 8)
        if self.protocol == "ideal":
            return Sent(messages[here] if len(here) < count else messages, [], refused), size
        masks, revealed = torch.zeros(messages.shape, dtype=torch.int64), []
        for a, b, seed in pairs:
            mask = self._mask(seed, masks)
            masks[a] += mask
            masks[b] -= mask
            if gone[a] != gone[b]:
                revealed.append((seed, 1 if gone[b] else -1))
        masks %= 2**self.bits  # so that they cross to a device as what they hide
        masked = (messages + there(masks.to(messages.dtype), messages.device)) % 2**self.bits
        return Sent(masked[here], [] if refused else revealed, refused), size + SEED_BYTES * len(revealed)

    def decode(self, sent: Sent, round_: Round) -> Tensor:
        """The sum, [1, j], as residues in [-2^(bits-1), 2^(bits-1)); nothing where there is none."""
        if sent.refused or not len(sent.uploads):
            return sent.uploads[:0]
        total = summed(sent.uploads)
        if sent.revealed:
            masks = (sign * self._mask(seed, sent.uploads) for seed, sign in sent.revealed)
            total = total - there(sum(masks), total.device)
        return centred(total, self.bits)[None]

    def _pairs(self, count: int, source: Source) -> list[tuple[int, int, Source]]:
        """Edges of the mask graph with their seeds."""
        if count < 2:
            return []
        circle = source.permutation(count).tolist()
        wanted = self.neighbours if self.neighbours is not None else 2 * math.ceil(math.log2(count))
        reach = max(1, min(math.ceil(wanted / 2), (count - 1) // 2 or 1))
        edges = {
            tuple(sorted((circle[i], circle[(i + step) % count])))
            for i in range(count)
            for step in range(1, reach + 1)
        }
        return [(a, b, source.of("mask", a, b)) for a, b in sorted(edges)]

    def _mask(self, seed: Source, like: Tensor) -> Tensor:
        """On the CPU, of the width of `like`."""
        return seed.words([0], like.shape[1])[0] >> (32 - self.bits)

    def diagnostics(self) -> dict[str, float]:
        return {"dropped": self._dropped, "refused": self._refused}


def least(participants: int, tolerance: float) -> int:
    """How many must remain for the sum to be released."""
    return max(1, math.ceil((1 - tolerance) * participants))


def summed(rows: Tensor) -> Tensor:
    """The sum of integers [C, j], in 64 bits."""
    if not rows.is_cpu:
        return rows.sum(0, dtype=torch.int64)
    total = torch.zeros(rows.shape[1], dtype=torch.int64)
    for row in rows:  # faster than a sum that widens the integers
        total += row
    return total


def centred(total: Tensor, bits: int) -> Tensor:
    """Residues modulo 2^bits, in [-2^(bits-1), 2^(bits-1))."""
    half = 1 << (bits - 1)
    return (total + half) % (1 << bits) - half


def _connected(pairs: list[tuple[int, int, Source]], gone: np.ndarray) -> bool:
    """Whether the participants who remain hang together in the mask graph."""
    if gone.all():
        return False
    left = [(a, b) for a, b, _ in pairs if not (gone[a] or gone[b])]
    ends = np.array(left, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(left)), (ends[0], ends[1])), shape=(len(gone), len(gone)))
    _, labels = connected_components(graph, directed=False)
    return len(set(labels[~gone].tolist())) == 1
