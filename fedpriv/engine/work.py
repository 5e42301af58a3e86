"""What local training is told, and what it gives back; the same for both engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedpriv.engine.batches import Plan
from fedpriv.randomness.source import Source

Rows = slice | Tensor  # some of the participants: neighbours, or their positions


@dataclass(frozen=True)
class Private:
    """DP-SGD inside local training: per-sample flat clip and Gaussian noise on the clipped sum."""

    clip_norm: float
    noise_std: Tensor  # [C] on the device: sigma_k * clip_norm
    lot: float  # the public constant the noisy sum is divided by
    noise: Source | None  # of the round: a row of normals for every client and step; None: no noise


@dataclass(frozen=True)
class Work:
    """One round of local training. `rows` holds each participant's start and is trained in place."""

    rows: Tensor  # [C, P]
    buffers: Tensor  # [C, F] running statistics of norm layers
    clients: Tensor  # [C] client numbers, on the CPU
    plan: Plan
    source: Source  # of the round's local training: dropout
    lr: list[float]  # per local step
    home_lr: float | None = None  # for the parameters kept at home; None: as the shared ones
    momentum: float = 0.0
    weight_decay: float = 0.0
    private: Private | None = None
    correction: Callable[[Tensor, Rows], Tensor] | None = None  # added to the shared gradient, [c, D]
    after_step: Callable[[Tensor, Rows], None] | None = None  # may change the shared weights in place
    measured: Tensor | None = None  # [C, P]: no training; gradients of all the plan's samples are added here

    @property
    def plain(self) -> bool:
        """Whether a step is nothing but weights -= lr * gradient, so that it can be done in place."""
        return not (self.momentum or self.weight_decay or self.correction) and self.home_lr is None


@dataclass(frozen=True)
class Trained:
    loss: Tensor  # [C] mean training loss over the samples seen; nan: saw none; inf: diverged


def blocks(group: Rows, size: int) -> Sequence[Rows]:
    """A group's participants, so many at a time."""
    if isinstance(group, Tensor):
        return list(group.split(size))
    return [slice(n, min(n + size, group.stop)) for n in range(group.start, group.stop, size)]
