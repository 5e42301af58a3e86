"""Distributed DP for whole clients: integers, Skellam noise shares and a secure sum (PrivateFL Algorithm 3).

Each of n participants clips its update to C, scales it by s, rotates it (randomised Hadamard, padded to j =
2^p), rounds it at random to integers until the norm bound of `rounded_norm` holds, adds Skellam noise of
variance (s z C)^2 / n, a share, and sends it modulo 2^bits. The server sees the sum, rotates it back and
divides by s and the expected number of participants (Agarwal, Kairouz and Liu 2021).

s fills the bits: `deviations` standard deviations m of the sum fit, 2^bits = 2 m sqrt(s^2 (C^2 n^2 / j +
(z C)^2) + n / 4). Departures from Algorithm 3 as printed: it acts on updates, not models; line 3 reads
(s C + sqrt(j))^2; line 4 repeats while the norm is above the bound, each time from the unrounded vector; line
10 of Algorithm 1 lacks 1 / sqrt(j) and 1 / n.

Guarantee: (epsilon, delta)-DP at the level of one client, against two observers. The `server` follows the
protocol and sees the sums, and who uploads: nothing is amplified, a client pays for the rounds it takes part
in, and its neighbour is a client whose updates count as zero. An `outsider` sees only the global models, so
sampling amplifies, and everybody pays every round (add or remove one client). `against` says for which of
them the noise is calibrated and the budget kept; the ledger shows both.

For the outsider every round must look alike whoever takes part. So noise of the same variance is released
always: one participant alone adds all of it, and when nobody takes part the server does.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.accelerator import there
from fedpriv.engine.base import cores
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import Mechanism
from fedpriv.mechanisms.client_level import NOT_COVERED, clip, one_budget, rate_of, sampler_of
from fedpriv.mechanisms.participation import Poisson
from fedpriv.mechanisms.rotation import hadamard, padded, random_signs
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy import relations
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.ledger import Guarantee, Observer
from fedpriv.privacy.skellam import SampledSkellam, l1_norm, rounded_norm
from fedpriv.randomness.poisson import skellam
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting
from fedpriv.uploads.secure_sum import centred, least, summed

MOST_BITS = 24  # residues and a few masks must fit 32-bit integers
_BLOCK = 1 << 24  # numbers a device rounds at once
ZEROED = "one client's updates count, or count as zero; that it takes part is known"


class DDP(Mechanism):
    device_needs = ("float64",)

    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        against: Literal["server", "outsider"] = "server",
        bits: int = 16,
        deviations: float = 4.0,
        beta: float = math.exp(-0.5),
    ):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        if not 2 <= bits <= MOST_BITS:
            raise UserError(f"dp_variant.bits={bits}: must lie between 2 and {MOST_BITS}")
        positive("dp_variant", deviations=deviations)
        if not 0 < beta < 1:
            raise UserError(f"dp_variant.beta={beta:g}: must lie between 0 and 1")
        self.clip_norm, self.against = clip_norm, against
        self.bits, self.deviations, self.beta = bits, deviations, beta
        self._wrapped = 0
        self.facts = MechanismFacts(
            unit="client",
            replaces=False,
            participation=Poisson(seen=against == "server"),
            sends="shares",
            weights="constant",
            bits=bits,
        )

    # -- calibration

    def calibrate(self, setting: Setting) -> Guarantee:
        self._count = self.facts.participation.rounds_charged(setting)
        self.width = padded(setting.layout.sent)
        self.cohort = setting.sample_rate * setting.clients
        z = self._calibrate(self.bits)
        if z is None:
            enough = next((b for b in range(self.bits + 1, MOST_BITS + 1) if self._calibrate(b)), None)
            advice = (
                f"use dp_variant.bits={enough} or more" if enough else "raise epsilon or lower sample_rate"
            )
            raise UserError(
                f"dp_variant.bits={self.bits}: too few for the sum of {self.cohort:g} clients over "
                f"{self.width} coordinates at epsilon={one_budget(setting):g}; {advice}"
            )
        self.z, self.scale = z, self._scale(z, self.bits)
        (event,) = self._charge(self.z, self.bits)
        self.bound, self.variance = event.l2, event.variance
        observers = self._observers()
        stated = observers[self.against]
        return Guarantee(
            unit=self.facts.unit,
            relation=stated.relation,
            sampler=stated.sampler,
            noise=np.full(setting.clients, self.z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=stated.charges,
            provable=stated.charges,
            not_covered=(
                "a server that breaks the protocol, or sees an upload before it is summed",
                "clients that collude: each knows its own share of the noise, and the rest is less by that",
                "who takes part in which round: the server sees it, outsiders must not",
                *NOT_COVERED,
            ),
            against=self.against,
            observers=observers,
            details={
                "clip_norm": self.clip_norm,
                "bits": self.bits,
                "scale": self.scale,
                "dimension": self.width,
                "skellam_variance": self.variance,
                "l2_sensitivity_rounded": event.l2,
                "l1_sensitivity_rounded": event.l1,
                "sensitivity_factor_of_rounding": event.l2 / (self.scale * self.clip_norm),
            },
        )

    def _scale(self, z: float, bits: int) -> float:
        """s, or 0 where the rounding errors alone fill the bits."""
        room = (2**bits / (2 * self.deviations)) ** 2 - self.cohort / 4
        signal = (self.clip_norm * self.cohort) ** 2 / self.width + (z * self.clip_norm) ** 2
        return math.sqrt(max(0.0, room) / signal)

    def _observers(self) -> dict[str, Observer]:
        setting = self.setting
        dealt = setting.schedule is not None
        return {
            "server": Observer(
                sees="the sum of every round and who takes part",
                relation=ZEROED,
                sampler="none: the server sees who takes part",
                charges=[self._charge(self.z, self.bits, rate=1.0)],
                pays="participants",
                planned=setting.planned,
            ),
            "outsider": Observer(
                sees="the global models only",
                relation=relations.CLIENT,
                sampler=sampler_of(setting),
                charges=[self._charge(self.z, self.bits, rate=rate_of(setting))],
                pays="participants" if dealt else "everyone",
                planned=setting.most,
            ),
        }

    def _charge(self, z: float, bits: int, rate: float | None = None) -> tuple[SampledSkellam]:
        """One participation against the observer the budget is kept for, or at a given rate."""
        if rate is None:
            rate = 1.0 if self.against == "server" else rate_of(self.setting)
        scale = self._scale(z, bits)
        l2 = rounded_norm(scale * self.clip_norm, self.width, self.beta)
        variance = (scale * z * self.clip_norm) ** 2
        return (SampledSkellam(rate, variance, l1_norm(l2, self.width), l2),)

    def _calibrate(self, bits: int) -> float | None:
        """The noise multiplier that keeps the budget, or None if these bits cannot."""
        if self._scale(1.0, bits) == 0:
            return None
        setting = self.setting
        # More noise leaves fewer bits for the signal; with too few of them no amount is enough.
        budget = one_budget(setting)
        if setting.accountant.epsilon(self._charge(1e5, bits), self._count, setting.delta) > budget:
            return None
        return noise_multiplier(
            lambda z: self._charge(z, bits),
            epsilon=budget,
            delta=setting.delta,
            count=self._count,
            accountant=setting.accountant,
        )

    # -- on the client

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """Integers modulo 2^bits, [C, j]."""
        if messages.shape[1] != self.setting.layout.sent:
            raise UserError(
                "dp_variant=ddp is calibrated to the model's own size, but this algorithm sends more; use "
                "algorithm=fedavg, fedprox or fedbn"
            )
        self._signs = random_signs(self.width, source.of("signs"), messages)
        participants = len(messages)
        integers = self._integers(messages, round_, source.of("rounding"))  # [C, j]
        if self.wiring.sum_only:
            # Skellam variables add, so where nothing but the sum exists one draw stands for all shares.
            noisy, variance = integers[:1], self.variance
        else:
            noisy, variance = integers, self.variance / least(participants, self.wiring.tolerance)
        for client, row in zip(round_.clients, noisy, strict=False):
            row += self._skellam(variance, source.of("skellam", int(client)), row)
        total = summed(integers)
        self._wrapped = int((total != centred(total, self.bits)).sum())
        return integers.bitwise_and_(2**self.bits - 1)

    def _integers(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """Clipped, scaled, rotated and rounded updates, a row at a time on every core.

        Each client rounds with draws of its own, whoever else takes part; they need not be secret.
        """
        integers = torch.empty(len(messages), self.width, dtype=torch.int32, device=messages.device)

        on_cpu = messages.device.type == "cpu"
        at_once = 1 if on_cpu else max(1, _BLOCK // self.width)

        def some(first: int) -> None:
            rows = slice(first, first + at_once)
            integers[rows] = self._rounded(self._rotated(messages[rows]), round_.clients[rows], source)

        with ThreadPoolExecutor(cores() if on_cpu else 1) as pool:
            list(pool.map(some, range(0, len(messages), at_once)))
        return integers

    def _rotated(self, updates: Tensor) -> Tensor:
        clipped = clip(updates, self.clip_norm)[0]
        wide = torch.nn.functional.pad(clipped * self.scale, (0, self.width - updates.shape[1]))
        return hadamard(wide * self._signs)

    def _rounded(self, x: Tensor, clients: np.ndarray, source: Source) -> Tensor:
        """Every coordinate of x [c, j] up or down at random, without bias; rows beyond the norm bound are
        drawn again. The host asks once an attempt which these are, for all clients together."""
        rounded, left = torch.empty_like(x), np.arange(len(x))
        for attempt in count():
            rows = there(left, x.device)
            drawn = source.uniforms_on(x.device, clients[left], x.shape[1], attempt).to(x)
            rounded[rows] = drawn.add_(x[rows]).floor_()
            within = torch.linalg.vector_norm(drawn, dim=1, dtype=torch.float64) <= self.bound
            left = left[~within.cpu().numpy()]
            if not len(left):
                break
        return rounded

    def _skellam(self, variance: float, source: Source, like: Tensor) -> Tensor:
        """A vector of noise, drawn exactly on the CPU whatever the device."""
        drawn = torch.as_tensor(skellam(self.width, variance, source.stream()))
        return there(drawn.to(like.dtype), like.device)

    def diagnostics(self) -> dict[str, float]:
        return {"wrapped": self._wrapped}

    # -- on the server

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        if not len(round_.clients):
            self._wrapped = 0
            aggregate = centred(self._skellam(self.variance, source, aggregate), self.bits)
        unrotated = hadamard((aggregate.to(self._signs.dtype) / self.scale)[None])[0] * self._signs
        return unrotated[: self.setting.layout.sent] / round_.expected
