"""Dropout by name: a sample's mask depends on the run's key, the client, the sample, the step and the layer.

Who else is in the batch changes nothing, so under DP-SGD one sample's absence changes its own gradient only.
"""

import copy
import math

import torch
from torch import Tensor, nn

from fedpriv.errors import UserError
from fedpriv.randomness.source import Source, limit_of

_WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_OTHERS = (nn.AlphaDropout, nn.FeatureAlphaDropout)


def sample_names(clients: Tensor, samples: Tensor) -> Tensor:
    """One number for every (client, sample): clients [C], samples [C, ...]."""
    return (clients.view(-1, *[1] * (samples.dim() - 1)) << 32) | samples


class NamedDropout(nn.Module):
    """nn.Dropout for samples side by side; an engine calls `name` before every pass."""

    def __init__(self, rate: float, number: int, channels: bool = False):
        super().__init__()
        self.rate, self.number, self.channels = rate, number, channels
        self.traced = False  # whether it is called inside of vmap

    def name(self, source: Source, samples: Tensor, step: int) -> None:
        """Whose masks the next pass needs: one name a sample, [N] (sample_names)."""
        self._source, self._step = source.of("dropout", self.number), step
        self.rename(samples)

    def rename(self, samples: Tensor) -> None:
        """The same step, other samples."""
        self._samples = samples

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        draw = self._source.words if x.is_cpu and not self.traced else self._source.words_there
        words = draw(self._samples, math.prod(shape[1:]), self._step)
        keep = words < int(limit_of(1 - self.rate))
        return x * keep.view(shape) / (1 - self.rate)


def name_dropouts(network: nn.Module) -> list[NamedDropout]:
    """Replace every dropout of a network in place; the replacements, in order."""
    found: list[NamedDropout] = []
    for module in list(network.modules()):
        for name, child in module._modules.items():
            if isinstance(child, _OTHERS):
                raise UserError(
                    f"model: {type(child).__name__} draws random numbers that no key protects; use nn.Dropout"
                )
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                found.append(NamedDropout(child.p, len(found), isinstance(child, _WHOLE_CHANNELS)))
                module._modules[name] = found[-1]
    return found


def check_draws(network: nn.Module, x: Tensor) -> None:
    """Refuse a network that draws random numbers outside of its dropout layers; x [B, ...]."""
    own = copy.deepcopy(network).train()
    for dropout in name_dropouts(own):
        dropout.rate = 0.0
    before = torch.random.get_rng_state()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        own(x)
        drew = not torch.equal(torch.random.get_rng_state(), before)
    if drew:
        raise UserError(
            "model: it draws random numbers in its forward pass (as F.dropout does), "
            "which no key protects; use nn.Dropout layers"
        )
