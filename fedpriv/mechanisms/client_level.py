"""What the variants that protect a whole client share: Poisson sampling of clients, and who pays for it.

Clients join each round by Poisson sampling, so every client is charged every round at the sampled rate. Where
a schedule fixes who takes part when (cross-device), nothing is amplified and only participants pay.
"""

import numpy as np
from torch import Tensor

from fedpriv.errors import UserError
from fedpriv.mechanisms.base import DIAGNOSTICS, TUNING, Mechanism
from fedpriv.randomness.source import Source

RELATION = "add or remove one client with all its samples"
NOT_COVERED = (
    "personal layers and personal models, which stay at home and must not be released",
    "how many clients there are, which the average is divided by",
    "who took part in which round: clients.csv says so, amplification rests on its secrecy",
    "samples within a client beyond what protecting the whole client gives",
    TUNING,
    DIAGNOSTICS,
)


class ClientLevel(Mechanism):
    unit = "client"
    constant_weights = True

    @property
    def rate(self) -> float:
        """The sampling rate the accountant may rely on."""
        return 1.0 if self.setting.schedule is not None else self.setting.sample_rate

    @property
    def rounds_charged(self) -> int:
        return self.setting.most

    @property
    def sampler(self) -> str:
        if self.setting.schedule is not None:
            return f"none: every client takes part in exactly {self.setting.planned} rounds, known beforehand"
        return "Poisson over clients, once a round" if self.rate < 1 else "none: every client, every round"

    def one_budget(self) -> float:
        """The epsilon of all clients."""
        if len(set(self.setting.budgets.tolist())) > 1:
            raise UserError(
                "dp_variant: cdp and ddp protect all clients alike; use budget=constant or budget.use=minimum"
            )
        return float(self.setting.budgets[0])

    def draw(self, eligible: np.ndarray, source: Source) -> tuple[np.ndarray, float]:
        everyone = np.arange(self.setting.clients)
        drawn = source.below(self.setting.sample_rate, everyone, 1)[:, 0].numpy()
        return np.flatnonzero(drawn & eligible), self.setting.sample_rate * self.setting.clients

    def charged(self, clients: np.ndarray) -> np.ndarray:
        return clients if self.setting.schedule is not None else np.arange(self.setting.clients)


def clip(messages: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Every row scaled into the ball of radius `bound`, and the rows' norms before, [C, 1].

    A client whose update overflowed cannot be scaled into the ball; nothing of it is sent.
    """
    norms = messages.norm(dim=1, keepdim=True)
    messages = messages.masked_fill(~norms.isfinite(), 0)
    norms = norms.nan_to_num(nan=0, posinf=0)
    return messages * (bound / norms.clamp(min=bound)), norms
