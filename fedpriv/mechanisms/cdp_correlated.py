"""Central DP for whole clients with noise that is correlated over rounds (DP-FTRL; Kairouz et al. 2021).

update_t = sum_k w_k Delta_k min(1, S / ||Delta_k||) + z S max_k w_k sens(C) y_t,    y = C^-1 N(0, I)

Rounds share noise in such a way that it cancels in their sum, the model, more than independent noise would
(correlation/base.py says why that is private). `matrix` is

  banded  a banded Toeplitz C, optimised for the run's rounds (Choquette-Choo et al. 2023);
  blt     a buffered linear Toeplitz C, the same with a few buffers only (McMahan et al. 2024);
  tree    a binary tree that begins anew every `restart` rounds (Kairouz et al. 2021).

Guarantee: (epsilon, delta)-DP for the sequence of global models at the level of one client, given a server
that is trusted with the single clipped updates, as one Gaussian release of all rounds together. It rests on
who takes part when being fixed beforehand: exactly `participations` rounds a client, any two of them at least
`separation` apart, or all rounds. Nothing is amplified by sampling. The server must keep its noise of former
rounds secret; it is in the checkpoint.
"""

from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedpriv.config.limits import Count, Width
from fedpriv.correlation.base import Correlation
from fedpriv.correlation.toeplitz import BLT, Banded
from fedpriv.correlation.tree import Tree
from fedpriv.errors import UserError, positive
from fedpriv.mechanisms.base import DIAGNOSTICS, FLOATS, TUNING, Mechanism
from fedpriv.mechanisms.client_level import clip, one_budget
from fedpriv.mechanisms.participation import Fixed
from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy import relations
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import Joint, SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting

BANDS = 16  # if the separation allows as many


class CorrelatedCDP(Mechanism):
    facts = MechanismFacts(unit="client", replaces=False, participation=Fixed(), weights="bounded")

    def __init__(
        self,
        *,
        clip_norm: float = 2.0,
        matrix: Literal["banded", "blt", "tree"] = "banded",
        bands: Width | None = None,
        buffers: Width = 4,
        restart: Count | None = None,
    ):
        positive("", "the clipping bound must be positive", clip_norm=clip_norm)
        self.clip_norm, self.matrix = clip_norm, matrix
        self.bands, self.buffers, self.restart = bands, buffers, restart

    def calibrate(self, setting: Setting) -> Guarantee:
        times, separation, width = setting.most, setting.separation, setting.layout.sent
        self.correlation = self._correlation(setting.rounds, times, separation)
        reach = self.correlation.sensitivities(times, separation)
        numbers = setting.rounds * width
        z = noise_multiplier(
            lambda z: (SampledGaussian(1.0, z, numbers=numbers),),
            epsilon=one_budget(setting),
            delta=setting.delta,
            count=1,
            accountant=setting.accountant,
        )
        self.scale = z * float(reach[-1])
        charges = [(Joint(z, tuple((reach / reach[-1]).tolist()), numbers),)]
        error = float(np.sqrt(self.correlation.variances().mean())) * float(reach[-1])
        alone = float(np.sqrt((1 + setting.rounds) / 2 * times))  # the same of independent noise
        bands = getattr(self.correlation, "bands", 0)
        if bands == 1 and self.matrix == "banded":
            self.remarks = (
                "dp_variant.matrix=banded with separation=1 is independent noise; set participations and "
                "separation, or matrix=blt",
            )
        return Guarantee(
            unit=self.facts.unit,
            relation=relations.SCHEDULED,
            sampler=(
                f"none: every client takes part in exactly {times} rounds, at least {separation} apart, "
                "known beforehand; correlated noise rests on that, and no sampling amplifies it"
            ),
            noise=np.full(setting.clients, z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=charges,
            provable=charges,
            not_covered=(
                "a server that keeps single updates: it is trusted to release only their noisy sum, and to "
                "keep the noise of former rounds, which is in the checkpoint",
                "who takes part in which round, which is fixed beforehand",
                "personal layers and personal models, which stay at home and must not be released",
                "how many clients there are, which the average is divided by",
                "samples within a client beyond what protecting the whole client gives",
                FLOATS,
                TUNING,
                DIAGNOSTICS,
            ),
            details={
                "clip_norm": self.clip_norm,
                "matrix": self.matrix,
                "participations": times,
                "separation": separation,
                "sensitivity_of_the_matrix": float(reach[-1]),
                "sensitivity_is": "exact" if self.correlation.exact else "an upper bound",
                "rms_error_of_the_sums_over_independent_noise": error / alone,
                "vectors_kept": self.correlation.memory,
            },
        )

    def _correlation(self, rounds: int, times: int, separation: int) -> Correlation:
        if self.matrix == "tree":
            return Tree(rounds, self.restart or separation)
        if self.matrix == "blt":
            return BLT(rounds, times, separation, self.buffers)
        bands = self.bands or min(BANDS, separation)
        if bands > separation:
            raise UserError(
                f"dp_variant.bands={bands}: a client's rounds would share noise columns, for they are only "
                f"separation={separation} apart; use at most as many bands, or dp_variant.matrix=blt"
            )
        return Banded(rounds, bands)

    @by_client
    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        return clip(messages, self.clip_norm)[0]

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        row = self.correlation.row(lambda number: source.normal(aggregate, number))
        return aggregate + row * (self.scale * self.clip_norm * largest_weight)

    def state(self) -> dict[str, Any]:
        return self.correlation.state()

    def load(self, state: dict[str, Any]) -> None:
        self.correlation.load(state)
