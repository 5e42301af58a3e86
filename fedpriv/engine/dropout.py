"""Dropout with a generator per client and step, so that threads and chunks change no number."""

import torch
from torch import Tensor, nn

from fedpriv.rng import seed_for


class NamedDropout(nn.Module):
    """nn.Dropout for C clients side by side; an engine sets `seeds`, one a client, before every pass."""

    def __init__(self, rate: float, number: int):
        super().__init__()
        self.rate, self.number = rate, number
        self.seeds: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
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
