"""What the models share: activations, norms, the flattened size of a body, and the composed network."""

from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["relu", "tanh"]
Norm = Literal["none", "batch", "group"]


def activation_layer(name: Activation) -> nn.Module:
    return {"relu": nn.ReLU, "tanh": nn.Tanh}[name]()


def norm_layer(name: Norm, channels: int) -> nn.Module:
    """Nothing, BatchNorm, or GroupNorm with the most groups up to 32 that divide the channels."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(max(g for g in range(1, min(32, channels) + 1) if channels % g == 0), channels)
    return nn.Identity()


def norm_vector(name: Norm, features: int) -> nn.Module:
    """The same for vectors; a group holds at least eight features, for one alone would become zero."""
    if name == "batch":
        return nn.BatchNorm1d(features)
    if name == "group":
        groups = max(g for g in range(1, 33) if g == 1 or (features % g == 0 and features // g >= 8))
        return nn.GroupNorm(groups, features)
    return nn.Identity()


def flat_size(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features the body gives for one sample."""
    was = body.training
    with torch.no_grad():
        size = body.eval()(torch.zeros(1, *shape)).numel()
    body.train(was)
    return size


def replace_layers(module: nn.Module, kind: type[nn.Module], make: "type[nn.Module]") -> None:
    """Swap every layer of a kind, in place."""
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, make())
        else:
            replace_layers(child, kind, make)


class Network(nn.Module):
    """What a client runs: its personal transform in front of the model."""

    def __init__(self, transform: nn.Module, model: nn.Module):
        super().__init__()
        self.transform = transform
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.transform(x))


def normalises_batches(network: nn.Module) -> bool:
    """Whether samples of a batch meet in its norm layers."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
