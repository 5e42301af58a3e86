"""PLDP-FL for non-IID data (Wu, Xu and Zhu 2023, Algorithm 2): clients send perturbed signs of their weights.

A weight W, clamped to [-c, c], is sent as 1 with probability Phi(W / sigma_k) and else as -1, where sigma_k
is Delta_2 / eps_k sqrt(2 ln(1.25 / delta)) (eqs. 6 and 7; Delta_2 is `sensitivity`, null: 2 c as in section
5.3). That is the sign of W + N(0, sigma_k^2), which is how it is drawn. The server broadcasts the sign of
what its aggregator makes of them (eqs. 10, 13 and 16), 0 where that is 0, unless `server_sign` is false.

`noise: false` is the paper's baseline without privacy (section 5.3): plain signs.

Guarantee: none as stated, for Delta_2 does not follow the number of weights d, the bound behind eq. 7 holds
for epsilon below 1 only, and rounds are not composed. What can be proved is that of the Gaussian mechanism
the signs are taken of, of sensitivity 2 c sqrt(d), over all rounds, for a client's whole data.
"""

import math

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import positive
from fedpriv.mechanisms.base import unprotected
from fedpriv.mechanisms.perturbed_models import SendsModels
from fedpriv.mechanisms.pldp_gaussian import gaussian_guarantee, noisy
from fedpriv.parts.base import by_client
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

TIE = 2.0**-20  # a weighted mean of signs below it is 0: no sum of floats in any order tells it apart


class PLDPSign(SendsModels):
    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        sensitivity: float | None = None,
        server_sign: bool = True,
        noise: bool = True,
    ):
        positive("dp_variant", clip_norm=clip_norm, sensitivity=sensitivity)
        self.clip_norm, self.server_sign, self.noise = clip_norm, server_sign, noise
        self.sensitivity = 2 * clip_norm if sensitivity is None else sensitivity

    def calibrate(self, setting: Setting) -> Guarantee:
        if not self.noise:
            return unprotected(setting, "no differential privacy: signs are sent as they are")
        self.sigma = equation_7(setting.budgets, setting.delta, self.sensitivity)
        return gaussian_guarantee(
            setting,
            self.sigma,
            self.clip_norm,
            stated=f"eq. 7 is for one release of sensitivity {self.sensitivity:g}, with epsilon below 1",
            values=False,
            details={"sensitivity": self.sensitivity},
        )

    @by_client
    def perturb(self, weights: Tensor, round_: Round, source: Source) -> Tensor:
        if not self.noise:
            return weights.sign()
        moved = noisy(weights, self.clip_norm, self.sigma, round_, source)
        return torch.where(moved >= 0, 1.0, -1.0).to(weights.dtype)

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        kept = torch.equal(aggregate, round_.start.to(aggregate))  # nobody was selected: the old model stays
        if self.server_sign and not kept:
            model = aggregate.sign().masked_fill_(aggregate.abs() < TIE, 0)
        else:
            model = aggregate
        return super().server(model, round_, largest_weight, source)


def equation_7(epsilon: np.ndarray, delta: float, sensitivity: float) -> np.ndarray:
    """Each client's standard deviation, [K]."""
    return sensitivity / epsilon * math.sqrt(2 * math.log(1.25 / delta))
