"""Local DP by DP-SGD on every client (Abadi et al. 2016; PrivateFL Algorithm 2, PFA section 4).

g~ = (sum_{i in B} g_i min(1, C / ||g_i||) + N(0, sigma_k^2 C^2 I)) / L

B is a Poisson batch (every sample joins with rate 1 / batches per pass, maybe none does), one flat norm over
model and transform, L the public batch size. Departure from PrivateFL Algorithm 2 line 8: noise once per
batch instead of per sample, and division by the constant L instead of |B|, which is itself private.

Guarantee: (epsilon_k, delta)-DP for each client k at the level of one sample (add or remove), for all rounds
it takes part in; actual participations are charged, client sampling amplifies nothing.

PFA section 4.2 has two ways to spend budgets that differ: every client its own noise, so that all run out
together (`noise=own`), or one noise for all, so that strict clients opt out early (`noise=uniform`, which is
calibrated to `reference`, else to the largest budget). `paper_sigma` takes the closed form of PFA's code,

sigma = 10 q sqrt(T log10(1 / delta)) / epsilon,   T the steps a client is expected to take,

behind which no accountant stands: the claim is the formula's, what is provable is the accountant's.
"""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine import batches
from fedpriv.engine.dropout import sample_names
from fedpriv.engine.work import Private
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import DIAGNOSTICS, FLOATS, TUNING, Mechanism, group_charges
from fedpriv.mechanisms.participation import FixedNumber
from fedpriv.mechanisms.training import LocalTraining
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy import relations
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import Charge, Direct, SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Setting


class DPSGD(LocalTraining):
    def __init__(self, setting: Setting, clip_norm: float, sigma: np.ndarray, rates: np.ndarray):
        super().__init__(setting)
        self.clip_norm, self.sigma, self.rates = clip_norm, sigma, torch.as_tensor(rates)  # [K] each

    def plan(self, clients: np.ndarray, owned: Tensor, source: Source) -> batches.Plan:
        samples, steps = self.amounts(clients)
        names = sample_names(torch.as_tensor(clients), owned)
        return batches.poisson(samples, self.rates[clients], steps, names, source)

    def private(self, clients: np.ndarray, noise: Source) -> Private:
        std = torch.as_tensor(self.sigma[clients] * self.clip_norm, dtype=torch.float32)
        return Private(self.clip_norm, std.to(self.setting.device), float(self.setting.batch_size), noise)


class LDP(Mechanism):
    facts = MechanismFacts(
        unit="sample", replaces=False, participation=FixedNumber(), weights="any", passes_on=True
    )

    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        noise: Literal["own", "uniform"] = "own",
        reference: float | None = None,
        paper_sigma: bool = False,
    ):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        positive("dp_variant", reference=reference)
        if reference is not None and noise == "own":
            raise UserError(f"dp_variant.reference={reference:g}: needs dp_variant.noise=uniform")
        self.clip_norm, self.noise, self.reference, self.paper_sigma = (
            clip_norm,
            noise,
            reference,
            paper_sigma,
        )

    def calibrate(self, setting: Setting) -> Guarantee:
        rates = 1.0 / setting.epochs_steps  # [K]
        targets = setting.budgets
        if self.noise == "uniform":
            targets = np.full(setting.clients, self.reference or setting.budgets.max())
        kinds, rows = group_charges(
            list(zip(rates.tolist(), setting.steps.tolist(), targets.tolist(), strict=True))
        )
        sigmas: dict[tuple[float, int, float], float] = {}
        near = 1.0
        for row in sorted(rows):  # similar ones follow each other, so that one search begins near the last
            near = sigmas[row] = self._calibrate(row[0], row[1], row[2], near)
        charges: list[Charge] = [(self._event(row[0], sigmas[row], row[1]),) for row in rows]
        claimed = charges
        if self.paper_sigma:
            claimed = [(Direct(self._formula(row[0], row[1], 1) / sigmas[row], 0.5),) for row in rows]
        self.sigma = np.array([sigmas[row] for row in rows])[kinds]  # [K]
        self.training = DPSGD(setting, self.clip_norm, self.sigma, rates)
        return Guarantee(
            unit=self.facts.unit,
            relation=relations.SAMPLE,
            sampler="Poisson over samples, per local step; clients without amplification",
            noise=self.sigma,
            kinds=kinds,
            claimed=claimed,
            provable=charges,
            flaws=("the noise follows the closed form of PFA's code, which is no guarantee",)
            if self.paper_sigma
            else (),
            not_covered=(
                "how many samples a client has (its sampling rate and number of steps follow from it)",
                FLOATS,
                TUNING,
                DIAGNOSTICS,
            ),
            details={"clip_norm": self.clip_norm, "lot_size": setting.batch_size},
        )

    def _calibrate(self, rate: float, steps: int, epsilon: float, near: float) -> float:
        setting = self.setting
        if self.paper_sigma:
            return self._formula(rate, steps, setting.planned) / epsilon
        return noise_multiplier(
            lambda sigma: (self._event(rate, sigma, steps),),
            epsilon=epsilon,
            delta=setting.delta,
            count=setting.planned,
            accountant=setting.accountant,
            near=near,
        )

    def _event(self, rate: float, sigma: float, steps: int) -> SampledGaussian:
        return SampledGaussian(rate, sigma, steps, self.setting.layout.total)

    def _formula(self, rate: float, steps: int, count: int) -> float:
        """Sigma times epsilon, by the closed form."""
        return 10 * rate * math.sqrt(steps * count * -math.log10(self.setting.delta))
