"""Local DP for whole clients: every client clips its update and adds noise before anything leaves it.

message = Delta_k min(1, S / ||Delta_k||) + noise

gaussian  L2 norm, N(0, (2 S z_k)^2 I): replacing all of a client's data moves a clipped update by up to 2 S;
laplace   L1 norm, Laplace of scale 2 S z_k for every number (Dwork et al. 2006): no delta for a single round.

z_k is calibrated to client k's budget over all rounds it takes part in. (The mechanism of the local model:
Duchi et al. 2013; with clipped updates: Truex et al. 2020.)

Guarantee: (epsilon_k, delta)-DP for all data of client k replaced by any other, against everybody who sees
what it sends, the server too, over all its rounds. With d numbers in a model the noise of one message is
about 2 z sqrt(d) times as long as what it hides: only a mean of very many clients, or a small model, learns.

Others, for the same clip_norm, epsilon and delta (privacy.json has the numbers of the run at hand):

  Flower's LocalDpMod  adds N(0, s^2), s = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, to every message;
      the user gives `sensitivity` besides `clipping_norm`, and rounds are not composed: epsilon is stated for
      one message. The formula is proved for epsilon below 1 only (Dwork and Roth 2014, theorem A.1).
  pfl-research  GaussianMechanism.construct_single_iteration: the analytic Gaussian mechanism of sensitivity
      clipping_bound, which its documentation states for users that take part at most once; LaplaceMechanism:
      L1 clipping and scale clipping_bound / epsilon, for one message. Sensitivity S is that of adding or
      removing an update; replacing one, which is what a local mechanism hides, moves it by 2 S.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import positive
from fedpriv.mechanisms.base import FLOATS, Mechanism, group_charges
from fedpriv.mechanisms.client_level import clip
from fedpriv.mechanisms.participation import FixedNumber
from fedpriv.mechanisms.perturbed_models import NOT_COVERED
from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy import relations
from fedpriv.privacy.accountants import RDP
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import Charge, Laplace, SampledGaussian
from fedpriv.privacy.floats import LAPLACE, outright
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.laplace import laplaces
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting


class LDPUpdate(Mechanism):
    facts = MechanismFacts(unit="client", replaces=True, participation=FixedNumber(), weights="any")

    def __init__(self, *, clip_norm: float = 2.0, noise: Literal["gaussian", "laplace"] = "gaussian"):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        self.clip_norm, self.noise = clip_norm, noise

    def calibrate(self, setting: Setting) -> Guarantee:
        count, width = self.facts.participation.rounds_charged(setting), setting.layout.sent
        kinds, rows = group_charges([(budget,) for budget in setting.budgets.tolist()])

        def charge(z: float) -> Charge:
            return (SampledGaussian(1.0, z, numbers=width) if self.noise == "gaussian" else Laplace(1 / z),)

        multipliers, near = [], 1.0
        for (budget,) in rows:
            near = noise_multiplier(
                charge,
                epsilon=budget,
                delta=setting.delta,
                count=count,
                accountant=setting.accountant,
                near=near,
            )
            multipliers.append(near)
        self.z = np.array(multipliers)[kinds]  # [K]
        charges = [charge(z) for z in multipliers]
        flaws: tuple[str, ...] = ()
        if self.noise == "laplace":  # in deviations of the noise, of which a scale is sqrt(1/2)
            move = 1 / (float(self.z.min()) * math.sqrt(2))
            flaws = outright("an update", move, width * setting.most, setting.delta, LAPLACE)
        return Guarantee(
            unit=self.facts.unit,
            relation=relations.LOCAL,
            sampler="none: who takes part is known, nothing is amplified",
            noise=self.z,
            kinds=kinds,
            claimed=charges,
            provable=None if flaws else charges,
            if_mended=charges if flaws else None,
            flaws=flaws,
            not_covered=(*NOT_COVERED, FLOATS),
            details={
                "clip_norm": self.clip_norm,
                "noise_law": self.noise,
                "sensitivity": 2 * self.clip_norm,
                "noise_std_min": self._std(float(self.z.min())),
                "noise_std_max": self._std(float(self.z.max())),
                "others_with_these_parameters": self.others(
                    float(setting.budgets.max()), setting.delta, count
                ),
            },
        )

    def _std(self, z: float) -> float:
        return 2 * self.clip_norm * z * (1 if self.noise == "gaussian" else math.sqrt(2))

    def others(self, epsilon: float, delta: float, count: int) -> dict[str, dict[str, Any]]:
        """What other frameworks add for one message, and what that comes to over `count` rounds, for a client
        whose data are replaced."""

        def spent(event: SampledGaussian | Laplace) -> float | None:
            found = RDP().epsilon((event,), count, delta)
            return found if math.isfinite(found) else None

        bound = self.clip_norm
        if self.noise == "laplace":
            return {
                "pfl LaplaceMechanism": {
                    "noise_std": math.sqrt(2) * bound / epsilon,
                    "states": f"epsilon {epsilon:g} for one message",
                    "epsilon_of_all_rounds": min(
                        2 * epsilon * count, spent(Laplace(2 * epsilon)) or math.inf
                    ),
                }
            }
        from dp_accounting.pld.common import DifferentialPrivacyParameters
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

        flower = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        guarantee = DifferentialPrivacyParameters(epsilon, delta)
        single = float(GaussianPrivacyLoss.from_privacy_guarantee(guarantee).standard_deviation)
        stated = f"({epsilon:g}, {delta:g}) for one message"
        return {
            name: {
                "noise_std": multiplier * bound,
                "states": stated,
                "epsilon_of_all_rounds": spent(SampledGaussian(1.0, multiplier / 2)),
            }
            for name, multiplier in (
                ("Flower LocalDpMod, sensitivity=clip_norm", flower),
                ("pfl GaussianMechanism.construct_single_iteration", single),
            )
        }

    @by_client
    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        std = torch.tensor([self._std(z) for z in self.z[round_.clients].tolist()]).to(messages)  # [C]
        clipped, _ = clip(messages, self.clip_norm, 2 if self.noise == "gaussian" else 1)
        if self.noise == "laplace":
            return clipped.addcmul_(laplaces(source, round_.clients, clipped), std[:, None])
        source.add_normals_(clipped, std, round_.clients)
        return clipped
