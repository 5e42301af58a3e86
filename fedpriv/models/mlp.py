"""Fully connected network: PrivateFL's 784-600-100-10 for MNIST, 600-512-256-128-100 for Purchase-100."""

from math import prod

from torch import nn

from fedpriv.config.limits import Width
from fedpriv.models.parts import Activation, Norm, activation_layer, norm_vector


def mlp(
    shape: tuple[int, ...],
    classes: int,
    *,
    sizes: tuple[Width, ...] = (600, 100),
    activation: Activation = "tanh",
    bias: bool = False,
    norm: Norm = "none",
) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(shape)
    for size in sizes:
        layers += [nn.Linear(width, size, bias=bias)]
        layers += [norm_vector(norm, size)] if norm != "none" else []
        layers += [activation_layer(activation)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes, bias=bias))
