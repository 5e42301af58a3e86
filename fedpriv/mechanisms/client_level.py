"""What the variants that protect a whole client share: one budget, its relation, and clipping.

Clients join each round by Poisson sampling (participation.py), so every client is charged every round at the
sampled rate. Where a schedule fixes who takes part when (cross-device), nothing is amplified.
"""

from typing import Literal

import torch
from torch import Tensor

from fedpriv.errors import UserError
from fedpriv.mechanisms.base import DIAGNOSTICS, TUNING
from fedpriv.rounds.setting import Setting

NOT_COVERED = (
    "personal layers and personal models, which stay at home and must not be released",
    "how many clients there are, which the average is divided by",
    "who took part in which round: clients.csv says so, amplification rests on its secrecy",
    "samples within a client beyond what protecting the whole client gives",
    TUNING,
    DIAGNOSTICS,
)


def rate_of(setting: Setting) -> float:
    """The sampling rate the accountant may rely on."""
    return 1.0 if setting.schedule is not None else setting.sample_rate


def sampler_of(setting: Setting) -> str:
    """What its amplification rests on."""
    if setting.schedule is not None:
        return f"none: every client takes part in exactly {setting.planned} rounds, known beforehand"
    return "Poisson over clients, once a round" if rate_of(setting) < 1 else "none: every client, every round"


def one_budget(setting: Setting) -> float:
    """The epsilon of all clients."""
    if len(set(setting.budgets.tolist())) > 1:
        raise UserError(
            "dp_variant: cdp and ddp protect all clients alike; use budget=constant or budget.use=minimum"
        )
    return float(setting.budgets[0])


def clip(messages: Tensor, bound: float, order: Literal[1, 2] = 2) -> tuple[Tensor, Tensor]:
    """Every row scaled into the ball of radius `bound`, and the rows' norms before, [C, 1].

    `order` 1 is the ball of summed absolute values. A client whose update overflowed cannot be scaled into
    the ball; nothing of it is sent.
    """
    norms = torch.linalg.vector_norm(messages, order, dim=1, keepdim=True)
    sound = norms.isfinite()
    # A CPU first asks whether one overflowed; another device would have to wait for the answer.
    if not messages.is_cpu or not bool(sound.all()):
        messages, norms = messages.masked_fill(~sound, 0), norms.masked_fill(~sound, 0)
    return messages * (bound / norms.clamp(min=bound)), norms
