"""Local DP by DP-SGD on every client (Abadi et al. 2016; PrivateFL Algorithm 2, PFA section 4).

g~ = (sum_{i in B} g_i min(1, C / ||g_i||) + N(0, sigma_k^2 C^2 I)) / L

B is a Poisson batch (every sample joins with rate 1 / batches per pass, maybe none does), one flat norm over
model and transform, L the public batch size. Departure from PrivateFL Algorithm 2 line 8: noise once per
batch instead of per sample, and division by the constant L instead of |B|, which is itself private.

Guarantee: (epsilon_k, delta)-DP for each client k at the level of one sample (add or remove), for all rounds
it takes part in; actual participations are charged, client sampling amplifies nothing.
"""

from collections.abc import Callable

import numpy as np
import torch

from fedpriv.engine import batches
from fedpriv.engine.work import Private
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import DIAGNOSTICS, TUNING, Mechanism, group_charges
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import Charge, SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.setting import Setting


class LDP(Mechanism):
    unit = "sample"
    per_sample = True

    def __init__(self, *, clip_norm: float = 2.0):
        if clip_norm <= 0:
            raise UserError(f"clip_norm={clip_norm:g}: the clipping bound must be positive")
        self.clip_norm = clip_norm

    def setup(self, setting: Setting) -> Guarantee:
        self.setting = setting
        rates = 1.0 / setting.epochs_steps  # [K]
        kinds, rows = group_charges(
            list(zip(rates.tolist(), setting.steps.tolist(), setting.budgets.tolist(), strict=True))
        )
        sigmas, charges = [], []
        for rate, steps, epsilon in rows:
            charge = self._charge(rate, steps)
            sigma = noise_multiplier(
                charge,
                epsilon=epsilon,
                delta=setting.delta,
                count=setting.planned,
                accountant=setting.accountant,
            )
            sigmas.append(sigma)
            charges.append(charge(sigma))
        self.sigma = np.array(sigmas)[kinds]  # [K]
        self._rates = torch.as_tensor(rates)
        return Guarantee(
            unit=self.unit,
            relation="add or remove one sample of one client",
            sampler="Poisson over samples, per local step; clients without amplification",
            noise=self.sigma,
            kinds=kinds,
            claimed=charges,
            provable=charges,
            not_covered=(
                "how many samples a client has (its sampling rate and number of steps follow from it)",
                TUNING,
                DIAGNOSTICS,
            ),
            details={"clip_norm": self.clip_norm, "lot_size": setting.batch_size},
        )

    @staticmethod
    def _charge(rate: float, steps: int) -> Callable[[float], Charge]:
        return lambda sigma: (SampledGaussian(rate, sigma, steps),)

    def plan(self, clients: np.ndarray, generator: torch.Generator) -> batches.Plan:
        samples, steps = (torch.as_tensor(a[clients]) for a in (self.setting.samples, self.setting.steps))
        return batches.poisson(samples, self._rates[clients], steps, generator)

    def local(self, clients: np.ndarray) -> Private:
        std = torch.as_tensor(self.sigma[clients] * self.clip_norm, dtype=torch.float32)
        return Private(self.clip_norm, std.to(self.setting.device), float(self.setting.batch_size))
