"""Small convolutional networks: PFA's for MNIST and for CIFAR-10, and LDP-FL's two-layer one."""

from typing import Literal

from torch import nn

from fedpriv.config.limits import Fraction, Width
from fedpriv.errors import UserError
from fedpriv.models.parts import Activation, Norm, activation_layer, flat_size, norm_layer


def _images(shape: tuple[int, ...], smallest: int) -> int:
    """The number of channels, or a refusal."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UserError(
            f"model: this network needs images of at least {smallest}x{smallest}, the dataset has {shape}; "
            "choose model=mlp or model=linear"
        )
    return shape[0]


def pfa_cnn(
    shape: tuple[int, ...], classes: int, *, activation: Activation = "relu", norm: Norm = "none"
) -> nn.Module:
    """16@8x8/2, pool 2/1, 32@4x4/2, pool 2/1, dense 32: 26,010 parameters on MNIST (PFA, section 6)."""
    body = nn.Sequential(
        nn.Conv2d(_images(shape, 20), 16, 8, stride=2, padding=3),
        norm_layer(norm, 16),
        activation_layer(activation),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        norm_layer(norm, 32),
        activation_layer(activation),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    dense = nn.Linear(flat_size(body, shape), 32)
    return nn.Sequential(*body, dense, activation_layer(activation), nn.Linear(32, classes))


def two_layer_cnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    norm: Norm = "none",
    size: Literal["small", "wide"] = "small",
) -> nn.Module:
    """10@5x5, pool, 20@5x5, pool, dense 50: 21,840 parameters on MNIST (LDP-FL, section 5, gives no sizes).

    `wide` has 32 and 64 channels and 512 dense units: 582,026 parameters.
    """
    first, second, width = (10, 20, 50) if size == "small" else (32, 64, 512)
    body = nn.Sequential(
        nn.Conv2d(_images(shape, 16), first, 5),
        norm_layer(norm, first),
        nn.MaxPool2d(2),
        activation_layer(activation),
        nn.Conv2d(first, second, 5),
        norm_layer(norm, second),
        nn.MaxPool2d(2),
        activation_layer(activation),
        nn.Flatten(),
    )
    dense = nn.Linear(flat_size(body, shape), width)
    return nn.Sequential(*body, dense, activation_layer(activation), nn.Linear(width, classes))


def cifar_cnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    norm: Norm = "none",
    dropout: Fraction = 0.25,
    dense: Width = 1024,
) -> nn.Module:
    """Three 3x3 convolutions of 32, 64 and 128 channels with pools, dense 1024 (PFA's CIFAR-10 model)."""
    layers: list[nn.Module] = []
    channels = _images(shape, 8)
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), norm_layer(norm, width)]
        layers += [activation_layer(activation), nn.MaxPool2d(2), nn.Dropout(dropout)]
        channels = width
    body = nn.Sequential(*layers, nn.Flatten())
    hidden = nn.Linear(flat_size(body, shape), dense)
    return nn.Sequential(*body, hidden, activation_layer(activation), nn.Linear(dense, classes))


def vgg_small(
    shape: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    norm: Norm = "none",
    widths: tuple[Width, ...] = (32, 64, 128),
    dense: Width = 128,
) -> nn.Module:
    """Pairs of 3x3 convolutions with a pool after each pair, then two dense layers (LDP-FL's small VGG)."""
    layers: list[nn.Module] = []
    channels = _images(shape, 8)
    for width in widths:
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), norm_layer(norm, width)]
            layers += [activation_layer(activation)]
            channels = width
        layers += [nn.MaxPool2d(2)]
    body = nn.Sequential(*layers, nn.Flatten())
    hidden = nn.Linear(flat_size(body, shape), dense)
    return nn.Sequential(*body, hidden, activation_layer(activation), nn.Linear(dense, classes))
