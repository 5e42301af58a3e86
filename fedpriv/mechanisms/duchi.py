"""LDP-FL (Sun, Qian and Chen 2021), eq. 2: every weight is answered by one of two points (Duchi et al. 2018).

w* = c + r (e^eps + 1) / (e^eps - 1) with probability 1/2 + (w - c) (e^eps - 1) / (2 r (e^eps + 1)), else
     c - r (e^eps + 1) / (e^eps - 1)

is eps-DP for one weight in [c - r, c + r] and unbiased; its variance is
r^2 ((e^eps + 1) / (e^eps - 1))^2 - (w - c)^2. The range is

  fixed     one range for all weights, `center` and `radius`, by default the paper's for the data set;
  adaptive  Algorithm 1 line 13: a range a layer, midpoint and half-width of the broadcast model's weights,
            at most `cap`. That model is the last perturbed aggregate (at first the initial one): public.

Departures: weights are clipped into the range first, which Algorithm 2 leaves out, and without which the
probabilities leave [0, 1]; and noise widens the next range without end, hence the cap, of which the text has
none. A layer whose weights all start equal, and so have no range, gets `radius`.

Guarantee: the paper's epsilon is that of one weight in one round. All d weights of a client depend on the
same data, so pure d * rounds * epsilon-DP is what holds for a client's data without anonymity.
"""

from dataclasses import replace
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import group_charges
from fedpriv.mechanisms.perturbed_models import NOT_COVERED, SendsModels
from fedpriv.parts.base import by_client
from fedpriv.privacy import relations
from fedpriv.privacy.events import Direct
from fedpriv.privacy.ledger import Guarantee
from fedpriv.privacy.shuffling import Reports
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

LARGEST = (
    30.0  # above, the less likely point is too rare for a 53-bit uniform number to hit as often as it must
)
RADIUS, RADII = 0.075, {"fmnist": 0.015}  # section 5: MNIST's, for other data sets too, and Fashion-MNIST's
_BLOCK = 1 << 22  # weights answered at once


class Duchi(SendsModels):
    facts = replace(SendsModels.facts, sends="answers")
    device_needs = ("float64",)

    def __init__(
        self,
        *,
        range: Literal["fixed", "adaptive"] = "fixed",
        center: float = 0.0,
        radius: float | None = None,
        cap: float = 1.0,
    ):
        positive("dp_variant", radius=radius, cap=cap)
        self.range, self.center, self.given, self.cap = range, center, radius, cap

    def calibrate(self, setting: Setting) -> Guarantee:
        usual = RADII.get(setting.dataset, RADIUS) if self.range == "fixed" else RADIUS
        self.radius = usual if self.given is None else self.given
        largest = float(setting.budgets.max())
        if largest > LARGEST:
            raise UserError(
                f"epsilon={largest:g}: a two-point answer needs at most {LARGEST:g} for one weight in one "
                "round, for more is no answer at random; lower epsilon or use dp=none"
            )
        width = setting.layout.sent
        layers = groupby(setting.layout.sent_entries, key=lambda e: e.name.rpartition(".")[0] or e.name)
        self._layers = [sum(e.stop - e.start for e in entries) for _, entries in layers]
        kinds, rows = group_charges([(e,) for e in setting.budgets.tolist()])
        worst = Reports(largest, width)
        return Guarantee(
            unit=self.facts.unit,
            relation=relations.LOCAL,
            sampler="none: who takes part is known, nothing is amplified",
            noise=1 / np.tanh(setting.budgets / 2),
            kinds=kinds,
            claimed=[(Direct(e, 0),) for (e,) in rows],
            provable=[(Reports(e, width),) for (e,) in rows],
            flaws=(
                f"the stated epsilon is that of one weight in one round, but a client sends {width:,} of "
                "them in every round it takes part in, all made from the same data",
            ),
            not_covered=NOT_COVERED,
            details={
                "accountant": "basic composition",
                "range": self.range,
                **({"center": self.center, "radius": self.radius} if self.range == "fixed" else {}),
                **({"range_cap": self.cap} if self.range == "adaptive" else {}),
                "weights": width,
                "epsilon_one_weight_one_round": largest,
                "epsilon_one_round": worst.pure(1),
                "epsilon_without_anonymity": worst.pure(setting.most),
                "epsilon_without_anonymity_with_delta": worst.with_delta(setting.most, setting.delta),
            },
        )

    def ranges(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Center and radius of every weight, [D] or one for all, given the broadcast model [D]."""
        if self.range == "fixed":
            return start.new_tensor(self.center), start.new_tensor(self.radius)
        ends = [(part.min(), part.max()) for part in start.split(self._layers)]
        low, high = (torch.stack(side) for side in zip(*ends, strict=True))  # [layers]
        half = ((high - low) / 2).clamp(max=self.cap)
        half = half.masked_fill(half == 0, self.radius)
        sizes = torch.tensor(self._layers, device=start.device)
        return tuple(v.repeat_interleave(sizes) for v in ((low + high) / 2, half))  # type: ignore[return-value]

    @by_client
    def perturb(self, weights: Tensor, round_: Round, source: Source) -> Tensor:
        center, radius = self.ranges(round_.start)
        epsilon = torch.as_tensor(round_.budgets, device=weights.device)[:, None]  # [C, 1], double
        at_once = max(1, _BLOCK // weights.shape[1])
        for first in range(0, len(weights), at_once):
            rows = slice(first, first + at_once)
            uniform = source.uniforms_on(weights.device, round_.clients[rows], weights.shape[1])
            weights[rows] = two_point(weights[rows], center, radius, epsilon[rows], uniform)
        return weights


def two_point(weights: Tensor, center: Tensor, radius: Tensor, epsilon: Tensor, uniform: Tensor) -> Tensor:
    """Eq. 2 for weights [C, D], epsilons [C, 1] and uniform numbers [C, D]; in double precision, to keep rare
    answers as rare."""
    tilt = torch.tanh(epsilon / 2)  # (e^eps - 1) / (e^eps + 1)
    place = ((weights - center) / radius).clamp(-1, 1)
    high = uniform < (1 + place * tilt) / 2
    return torch.where(high, center + radius / tilt, center - radius / tilt).to(weights.dtype)
