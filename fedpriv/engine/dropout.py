"""Dropout whose masks follow from a sample's number and the step, whoever else is in the batch."""

import torch
from torch import Tensor, nn

from fedpriv.randomness.source import Numbers, Source
from fedpriv.rng import seed_for


class NamedDropout(nn.Module):
    """nn.Dropout for C clients side by side; an engine sets `seeds`, one a client, before every pass."""

    def __init__(self, rate: float, number: int):
        super().__init__()
        self.rate, self.number = rate, number
        self.seeds: list[int] = []
        self.named: tuple[Source, Numbers, int] | None = None

    def name(self, source: Source, samples: Numbers, step: int) -> None:
        """Which samples [N] the next pass sees, and at which step."""
        self.named = source.of("dropout", self.number), samples, step

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if self.named is not None:
            source, samples, step = self.named
            mask = source.below(1 - self.rate, samples, x[0].numel(), step)
            return x * mask.to(x).view(x.shape) / (1 - self.rate)
        per_client = x.view(len(self.seeds), -1, *x.shape[1:])
        keep = torch.empty(per_client.shape, device=x.device, dtype=x.dtype)
        generator = torch.Generator(device=x.device)
        for own, seed in zip(keep, self.seeds, strict=True):  # row after row: padding behind changes nothing
            own.bernoulli_(1 - self.rate, generator=generator.manual_seed(seed_for(seed, self.number)))
        return x * keep.view(x.shape) / (1 - self.rate)


def name_dropouts(network: nn.Module) -> list[NamedDropout]:
    """Replace every nn.Dropout of a network in place; the replacements, in order."""
    found: list[NamedDropout] = []
    for module in list(network.modules()):
        for name, child in module._modules.items():
            if isinstance(child, nn.Dropout):
                found.append(NamedDropout(child.p, len(found)))
                module._modules[name] = found[-1]
    return found


def step_seeds(seed: int, clients: list[int], step: int) -> list[int]:
    return [seed_for(seed, client, step) for client in clients]
