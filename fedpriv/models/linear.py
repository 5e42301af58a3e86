"""One linear layer: multinomial logistic regression (PFA, PLDP-FL) and the head on encoder features."""

from math import prod
from typing import Literal

from torch import nn


def linear(
    shape: tuple[int, ...], classes: int, *, bias: bool = True, init: Literal["zero", "default"] = "zero"
) -> nn.Module:
    """x -> softmax(W x + b); `init` zero starts at the symmetric point, as PFA and PLDP-FL do."""
    layer = nn.Linear(prod(shape), classes, bias=bias)
    if init == "zero":
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)
