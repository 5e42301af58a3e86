"""PLDP-FL for IID data (Wu, Xu and Zhu 2023, Algorithm 1): every weight is clipped and gets Gaussian noise.

W~ = clamp(W, -c, c) + N(0, sigma_k^2 I)
sigma_k = sqrt(4 q^2 R / (1 - q)) (2 / eps_k^2 log(1 / delta) + 1 / eps_k)        (eq. 4)

As printed the root is over the fraction only (`root: fraction`); `root: all` puts it over everything. Eq. 4
holds no sensitivity; `sensitivity` multiplies sigma (1: as printed). Every round a client trains on a fresh
random part of its data, each sample with probability q (`data_rate`), for as many steps as with all of it.

Departure: the clipping sentence sends every weight up to c to -c; here weights are clamped to [-c, c].

Guarantee: not the stated one in general, for sigma follows neither c nor the number of weights d. What can be
proved of the same releases is the Gaussian mechanism of sensitivity 2 c sqrt(d) over all rounds, for all of a
client's data; a single sample can move the model as far, so no less is proved for it. Where c is so many
sigma that noise drawn in floats does not reach over it, nothing is.
"""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine import batches
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import FLOATS, group_charges
from fedpriv.mechanisms.perturbed_models import NOT_COVERED, SendsModels
from fedpriv.mechanisms.training import LocalTraining
from fedpriv.parts.base import by_client
from fedpriv.privacy import relations
from fedpriv.privacy.events import Direct, SampledGaussian
from fedpriv.privacy.floats import outright
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

SAMPLER = "none: who takes part is known; sampling a client's own data is not counted"


class RandomPart(LocalTraining):
    """Passes over a fresh random part of a client's data."""

    def __init__(self, setting: Setting, data_rate: float):
        super().__init__(setting)
        self.data_rate = data_rate

    def plan(self, clients: np.ndarray, owned: Tensor, source: Source) -> batches.Plan:
        samples, steps = self.amounts(clients)
        widest = int(samples.max())
        joins = source.of("part").below(self.data_rate, clients, widest)  # [C, widest]
        joins &= torch.arange(widest)[None, :] < samples[:, None]
        joins[:, 0] |= ~joins.any(1)  # one sample at least, or there would be nothing to train on
        who = torch.as_tensor(clients)
        plan = batches.shuffled(joins.sum(1), self.setting.batch_size, steps, who, source)
        chosen = joins.to(torch.int8).argsort(
            dim=1, descending=True, stable=True
        )  # those that joined come first
        return replace(plan, index=chosen.gather(1, plan.index.flatten(1)).view(plan.index.shape))


class PLDPGaussian(SendsModels):
    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        data_rate: float = 0.8,
        root: Literal["fraction", "all"] = "fraction",
        sensitivity: float = 1.0,
    ):
        if not 0 < data_rate < 1:
            raise UserError(
                f"dp_variant.data_rate={data_rate:g}: must lie between 0 and 1 (eq. 4 divides by 1 - q)"
            )
        positive("dp_variant", clip_norm=clip_norm, sensitivity=sensitivity)
        self.clip_norm, self.data_rate, self.root, self.sensitivity = clip_norm, data_rate, root, sensitivity

    def calibrate(self, setting: Setting) -> Guarantee:
        self.training = RandomPart(setting, self.data_rate)
        self.sigma = self.sensitivity * equation_4(
            setting.budgets, setting.delta, self.data_rate, setting.rounds, self.root
        )
        return gaussian_guarantee(
            setting,
            self.sigma,
            self.clip_norm,
            stated="eq. 4 holds neither the clipping bound nor the number of weights",
            values=True,
            details={"data_rate": self.data_rate, "root": self.root, "sensitivity": self.sensitivity},
        )

    @by_client
    def perturb(self, weights: Tensor, round_: Round, source: Source) -> Tensor:
        return noisy(weights, self.clip_norm, self.sigma, round_, source)


def equation_4(epsilon: np.ndarray, delta: float, q: float, rounds: int, root: str) -> np.ndarray:
    """Each client's standard deviation, [K]."""
    fraction = 4 * q**2 * rounds / (1 - q)
    rest = 2 / epsilon**2 * math.log(1 / delta) + 1 / epsilon
    return np.sqrt(fraction) * rest if root == "fraction" else np.sqrt(fraction * rest)


def noisy(weights: Tensor, bound: float, sigma: np.ndarray, round_: Round, source: Source) -> Tensor:
    """Every weight clamped, plus its client's noise, [C, D]."""
    std = torch.as_tensor(sigma[round_.clients]).to(weights)
    result = weights.clamp(-bound, bound)
    source.add_normals_(result, std, round_.clients)
    return result


def gaussian_guarantee(
    setting: Setting,
    sigma: np.ndarray,
    bound: float,
    *,
    stated: str,
    values: bool,
    details: dict[str, object],
) -> Guarantee:
    """The stated epsilons, and the Gaussian mechanism that is really there; `values`: these are sent."""
    if setting.accountant.name != "rdp":  # a grid of privacy losses in the thousands does not fit a machine
        raise UserError(
            f"accountant={setting.accountant.name}: cannot compose as little noise as PLDP-FL adds to a "
            "model; use accountant=rdp"
        )
    reach = 2 * bound * math.sqrt(setting.layout.sent)
    kinds, rows = group_charges(list(zip(setting.budgets.tolist(), (sigma / reach).tolist(), strict=True)))
    ideal = [(SampledGaussian(1.0, multiplier),) for _, multiplier in rows]
    flaws = (
        f"{stated}: a client's {setting.layout.sent:,} weights in [-{bound:g}, {bound:g}] can move by "
        f"{reach:.4g} in every round",
    )
    move = 2 * bound / float(sigma.min())
    told = outright("a weight", move, setting.layout.sent * setting.most, setting.delta) if values else ()
    return Guarantee(
        unit=SendsModels.facts.unit,
        relation=relations.LOCAL,
        sampler=SAMPLER,
        noise=sigma / reach,
        kinds=kinds,
        claimed=[(Direct(epsilon, 0),) for epsilon, _ in rows],
        provable=None if told else ideal,
        if_mended=ideal if told else None,
        flaws=told + flaws,
        not_covered=(*NOT_COVERED, FLOATS),
        details={
            "clip": bound,
            "l2_sensitivity_of_a_model": reach,
            "noise_std_min": float(sigma.min()),
            "noise_std_max": float(sigma.max()),
            **details,
        },
    )
