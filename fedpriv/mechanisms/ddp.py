"""Distributed DP for whole clients: integers, Skellam noise shares and a secure sum (PrivateFL Algorithm 3).

Each of n participants clips its update to C, scales it by s, rotates it (randomised Hadamard, padded to j =
2^p), rounds it at random to integers until the norm bound of `rounded_norm` holds, adds Skellam noise of
variance (s z C)^2 / n, a share, and sends it modulo 2^bits. The server sees the sum, rotates it back and
divides by s and the expected number of participants (Agarwal, Kairouz and Liu 2021).

s fills the bits: `deviations` standard deviations m of the sum fit, 2^bits = 2 m sqrt(s^2 (C^2 n^2 / j +
(z C)^2) + n / 4). Departures from Algorithm 3 as printed: it acts on updates, not models; line 3 reads
(s C + sqrt(j))^2; line 4 repeats while the norm is above the bound, each time from the unrounded vector; line
10 of Algorithm 1 lacks 1 / sqrt(j) and 1 / n.

Guarantee: (epsilon, delta)-DP for the sequence of global models at the level of one client (add or remove),
against a server that follows the protocol and sees only the sums.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.aggregators.sum import Sum
from fedpriv.engine.fast import cores
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.client_level import NOT_COVERED, RELATION, ClientLevel, clip
from fedpriv.mechanisms.rotation import hadamard, padded, random_signs
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.ledger import Guarantee
from fedpriv.privacy.skellam import SampledSkellam, l1_norm, rounded_norm
from fedpriv.randomness.source import Source
from fedpriv.setting import Round, Setting
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.secure_sum import SecureSum

MOST_BITS = 24  # residues and a few masks must fit 32-bit integers


class DDP(ClientLevel):
    def __init__(
        self, *, clip_norm: float = 2.0, bits: int = 16, deviations: float = 4.0, beta: float = math.exp(-0.5)
    ):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        if not 2 <= bits <= MOST_BITS:
            raise UserError(f"dp_variant.bits={bits}: must lie between 2 and {MOST_BITS}")
        positive("dp_variant", deviations=deviations)
        if not 0 < beta < 1:
            raise UserError(f"dp_variant.beta={beta:g}: must lie between 0 and 1")
        self.clip_norm, self.bits, self.deviations, self.beta = clip_norm, bits, deviations, beta
        self._wrapped = 0

    # -- calibration

    def setup(self, setting: Setting) -> Guarantee:
        self.setting = setting
        self.width = padded(setting.layout.shared)
        self.cohort = setting.sample_rate * setting.clients
        self.z = self._calibrate(self.bits)
        if self.z is None:
            enough = next((b for b in range(self.bits + 1, MOST_BITS + 1) if self._calibrate(b)), None)
            advice = (
                f"use dp_variant.bits={enough} or more" if enough else "raise epsilon or lower sample_rate"
            )
            raise UserError(
                f"dp_variant.bits={self.bits}: too few for the sum of {self.cohort:g} clients over "
                f"{self.width} coordinates at epsilon={self.one_budget():g}; {advice}"
            )
        self.scale = self._scale(self.z, self.bits)
        (event,) = self._charge(self.z, self.bits)
        self.bound, self.variance = event.l2, event.variance
        charge = [(event,)]
        return Guarantee(
            unit=self.unit,
            relation=RELATION,
            sampler=self.sampler,
            noise=np.full(setting.clients, self.z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=charge,
            provable=charge,
            not_covered=(
                "a server that breaks the protocol, or sees an upload before it is summed",
                "clients that collude: each knows its own share of the noise, and the rest is less by that",
                "how many clients take part in a round, which the secure sum reveals",
                *NOT_COVERED,
            ),
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

    def _charge(self, z: float, bits: int) -> tuple[SampledSkellam]:
        scale = self._scale(z, bits)
        l2 = rounded_norm(scale * self.clip_norm, self.width, self.beta)
        variance = (scale * z * self.clip_norm) ** 2
        return (SampledSkellam(self.rate, variance, l1_norm(l2, self.width), l2),)

    def _calibrate(self, bits: int) -> float | None:
        """The noise multiplier that keeps the budget, or None if these bits cannot."""
        if self._scale(1.0, bits) == 0:
            return None
        setting = self.setting
        # More noise leaves fewer bits for the signal; with too few of them no amount is enough.
        if setting.accountant.epsilon(self._charge(1e5, bits), self.rounds_charged, setting.delta) > (
            self.one_budget()
        ):
            return None
        return noise_multiplier(
            lambda z: self._charge(z, bits),
            epsilon=self.one_budget(),
            delta=setting.delta,
            count=self.rounds_charged,
            accountant=setting.accountant,
        )

    def check(self, aggregator: Aggregator, upload: Plain) -> None:
        if not isinstance(upload, SecureSum) or not isinstance(aggregator, Sum):
            raise UserError(
                "dp_variant=ddp is private only in the sum: it needs upload=secure_sum and aggregator=sum, "
                "which it chooses unless the command line says otherwise"
            )
        upload.bits = self.bits
        self._upload = upload

    # -- on the client

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """Integers modulo 2^bits, [C, j]."""
        if messages.shape[1] != self.setting.layout.shared:
            raise UserError(
                "dp_variant=ddp is calibrated to the model's own size, but this algorithm sends more; use "
                "algorithm=fedavg, fedprox or fedbn"
            )
        self._signs = random_signs(self.width, source.of("signs"), messages)
        participants = len(messages)
        integers = self._integers(messages, round_, source.of("rounding"))  # [C, j]
        if self._upload.only_the_sum_exists:
            # Skellam variables add, so where nothing but the sum exists one draw stands for all shares.
            noisy, variance = integers[:1], self.variance
        else:
            noisy, variance = integers, self.variance / self._upload.least(participants)
        total = torch.zeros(self.width, dtype=torch.int64, device=messages.device)
        for client, row in zip(round_.clients, noisy, strict=False):
            row += self._skellam(self.width, variance, source.of("skellam", int(client))).to(row.device)
        for row in integers:
            total += row
        half = 1 << (self.bits - 1)
        self._wrapped = int(((total < -half) | (total >= half)).sum())
        return integers.bitwise_and_(2**self.bits - 1)

    def _integers(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        """Clipped, scaled, rotated and rounded updates, a row at a time on every core.

        Each client rounds with draws of its own; the guarantee does not rest on these being secret.
        """
        integers = torch.empty(len(messages), self.width, dtype=torch.int32, device=messages.device)

        def one(place: int) -> None:
            client = int(round_.clients[place])
            integers[place] = self._rounded(self._rotated(messages[place]), client, source)

        workers = cores() if messages.device.type == "cpu" else 1
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, range(len(messages))))
        return integers

    def _rotated(self, update: Tensor) -> Tensor:
        clipped = clip(update[None], self.clip_norm)[0]
        wide = torch.nn.functional.pad(clipped * self.scale, (0, self.width - len(update)))
        return hadamard(wide * self._signs)[0]

    def _rounded(self, x: Tensor, client: int, source: Source) -> Tensor:
        """Every coordinate up or down at random, without bias; drawn again while beyond the norm bound."""
        for attempt in count():
            rounded = source.uniforms([client], len(x), attempt)[0].to(x)
            rounded.add_(x).floor_()
            if torch.linalg.vector_norm(rounded, dtype=torch.float64) <= self.bound:
                break
        return rounded

    @staticmethod
    def _skellam(width: int, variance: float, source: Source) -> Tensor:
        """The difference of two Poisson variables of half the variance each."""
        draws = np.random.Generator(np.random.Philox(key=int.from_bytes(source.key[:16], "little")))
        pair = draws.poisson(variance / 2, (2, width))
        return torch.from_numpy(pair[0] - pair[1]).to(torch.int32)

    def diagnostics(self) -> dict[str, float]:
        return {"wrapped": self._wrapped}

    # -- on the server

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        unrotated = hadamard((aggregate.to(self._signs.dtype) / self.scale)[None])[0] * self._signs
        return unrotated[: self.setting.layout.shared] / round_.expected
