"""Central DP for whole clients: clip every update, average over a constant, noise on the server.

update = sum_k w_k Delta_k min(1, S / ||Delta_k||) + N(0, (z S max_k w_k)^2 I)

(McMahan et al. 2018; PrivateFL Algorithm 1 lines 11-14.) The bound S is

  fixed     clip_norm, flat over the whole update;
  adaptive  the `quantile` of the update norms, followed privately (Andrew et al. 2021): each client also
            sends whether it was below S; that bit has its own noise, paid for out of z;
  paper     PrivateFL's own: per tensor at min(median norm, 10), where the median is taken of raw norms.
            NOT private; the ledger shows infinity, and what would hold were the bounds public: the tensors'
            norms add up, so z is weaker by the root of their number.

`clip=step` also pulls the local model back into the ball of radius S after every local step. Departures from
Algorithm 1 line 14: Delta * min(1, S / ||Delta||) instead of Delta / ||Delta||.

Guarantee: (epsilon, delta)-DP for the sequence of global models at the level of one client (add or remove),
given a server that is trusted with the single clipped updates. Personal layers are never released.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine.work import Rows
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import FLOATS, Mechanism
from fedpriv.mechanisms.client_level import NOT_COVERED, clip, one_budget, rate_of, sampler_of
from fedpriv.mechanisms.participation import Poisson
from fedpriv.mechanisms.training import LocalTraining
from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy import relations
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

MEDIAN_CAP = 10.0


class PulledBack(LocalTraining):
    """After every local step the model is scaled back into the ball around its start."""

    def __init__(self, setting: Setting, radius: Callable[[], float]):
        super().__init__(setting)
        self.radius = radius

    def after_step(self, start: Tensor) -> Callable[[Tensor, Rows], None]:
        radius = self.radius()

        def pull_back(shared: Tensor, rows: Rows) -> None:
            moved = shared - start[rows]
            norms = moved.norm(dim=1, keepdim=True).clamp(min=radius)
            shared.copy_(start[rows] + moved * (radius / norms))

        return pull_back


class CDP(Mechanism):
    facts = MechanismFacts(unit="client", replaces=False, participation=Poisson(), weights="bounded")

    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        bound: Literal["fixed", "adaptive", "paper"] = "fixed",
        clip: Literal["round", "step"] = "round",
        quantile: float = 0.5,
        quantile_lr: float = 0.2,
        quantile_noise: float | None = None,
    ):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        if not 0 < quantile < 1:
            raise UserError(f"dp_variant.quantile={quantile:g}: must lie between 0 and 1")
        if bound == "paper" and clip == "step":
            raise UserError(
                "dp_variant.clip=step needs a bound known before the round; use bound=fixed or adaptive"
            )
        self.clip_norm, self.bound, self.clip = clip_norm, bound, clip
        self.quantile, self.quantile_lr, self.quantile_noise = quantile, quantile_lr, quantile_noise
        self.threshold = clip_norm  # S, follows the quantile when adaptive

    def calibrate(self, setting: Setting) -> Guarantee:
        if self.clip == "step":
            self.training = PulledBack(setting, lambda: self.threshold)
        rate, width = rate_of(setting), setting.layout.sent + 1  # the adaptive bit is one more
        z = noise_multiplier(
            lambda z: (SampledGaussian(rate, z, numbers=width),),
            epsilon=one_budget(setting),
            delta=setting.delta,
            count=self.facts.participation.rounds_charged(setting),
            accountant=setting.accountant,
        )
        self.z, self.z_update = z, z
        tensors = len(setting.layout.sent_entries)
        claimed = [(SampledGaussian(rate, z, numbers=width),)]
        details: dict[str, Any] = {"clip_norm": self.clip_norm, "bound": self.bound, "clip": self.clip}
        flaws: tuple[str, ...] = ()
        mended = None
        if self.bound == "adaptive":
            self.bit_noise = self._split(z)
            details |= {
                "noise_multiplier_update": self.z_update,
                "noise_std_below_bound_count": self.bit_noise,
            }
        if self.bound == "paper":
            flaws = (
                "the clipping bound is the median of the clients' raw update norms, released without noise",
                f"each of {tensors} tensors is clipped and noised at its own bound for one charge: the joint "
                f"sensitivity is sqrt({tensors}) times what the noise is calibrated to",
            )
            mended = [(SampledGaussian(rate, z / math.sqrt(tensors)),)]
        return Guarantee(
            unit=self.facts.unit,
            relation=relations.CLIENT,
            sampler=sampler_of(setting),
            noise=np.full(setting.clients, z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=claimed,
            provable=None if self.bound == "paper" else claimed,
            flaws=flaws,
            if_mended=mended,
            not_covered=(
                "a server that keeps single updates: it is trusted to release only their noisy sum",
                FLOATS,
                *NOT_COVERED,
            ),
            details=details,
        )

    def _split(self, z: float) -> float:
        """Share z between the update and the bit (sensitivity 1/2): z^-2 = z_update^-2 + (2 b)^-2."""
        expected = self.setting.sample_rate * self.setting.clients
        bit = self.quantile_noise if self.quantile_noise is not None else max(expected / 20, z)
        if 2 * bit <= z:
            raise UserError(
                f"dp_variant.quantile_noise={bit:g} leaves no budget for the update; it must exceed {z / 2:g}"
            )
        self.z_update = (z**-2 - (2 * bit) ** -2) ** -0.5
        return bit

    def apart(self, method: str) -> bool:
        return self.bound != "paper" and super().apart(method)  # a median is of all clients

    @by_client
    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        if self.bound == "paper":
            return self._clip_at_medians(messages)
        clipped, norms = clip(messages, self.threshold)
        if self.bound == "adaptive":
            below = (norms <= self.threshold).to(messages.dtype) - 0.5
            clipped = torch.cat([clipped, below], 1)  # [C, D + 1]
        return clipped

    def _clip_at_medians(self, messages: Tensor) -> Tensor:
        if messages.shape[1] != self.setting.layout.sent:
            raise UserError(
                "dp_variant.bound=paper clips the model's own tensors, but this algorithm sends more; use "
                "bound=fixed or adaptive"
            )
        clipped = messages.clone()
        self._bounds = []
        for entry in self.setting.layout.sent_entries:
            part = clipped[:, entry.start : entry.stop]
            norms = part.norm(dim=1, keepdim=True)
            bound = min(float(norms.median()), MEDIAN_CAP) if len(norms) else 0.0
            self._bounds.append(bound)
            part *= bound / norms.clamp(min=max(bound, 1e-12))
        return clipped

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        noise = source.normal(aggregate)
        if self.bound == "paper":
            for entry, bound in zip(self.setting.layout.sent_entries, self._bounds, strict=True):
                noise[entry.start : entry.stop] *= self.z * bound * largest_weight
            return aggregate + noise
        if self.bound == "fixed":
            return aggregate + noise * (self.z * self.threshold * largest_weight)
        update = aggregate[:-1] + noise[:-1] * (self.z_update * self.threshold * largest_weight)
        below = float(aggregate[-1] + noise[-1] * (self.bit_noise * largest_weight)) + 0.5
        self.threshold *= math.exp(-self.quantile_lr * (below - self.quantile))
        return update

    def state(self) -> dict[str, Any]:
        return {"threshold": self.threshold}

    def load(self, state: dict[str, Any]) -> None:
        self.threshold = state["threshold"]
