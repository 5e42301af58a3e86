"""Every kind of network on a small problem."""

from functools import partial

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.base import Data
from fedpriv.engine.data import ClientData
from fedpriv.engine.layout import Layout
from fedpriv.models import cnn, linear, lstm, mlp, resnet
from fedpriv.models.parts import Network

IMAGES, SMALL, RGB = (1, 28, 28), (1, 8, 8), (3, 16, 16)


MODELS = {
    "logreg": (partial(linear.linear, init="default"), SMALL),
    "linear": (partial(linear.linear, init="default", bias=False), (12,)),
    "mlp": (partial(mlp.mlp, sizes=[20, 9]), SMALL),
    "mlp large": (partial(mlp.mlp, sizes=[90], bias=True), IMAGES),  # above the size for ragged products
    "mlp bias group": (partial(mlp.mlp, sizes=[16], bias=True, norm="group", activation="relu"), SMALL),
    "cnn": (cnn.pfa_cnn, IMAGES),
    "cnn group": (partial(cnn.pfa_cnn, norm="group"), IMAGES),
    "cnn_two_layer": (cnn.two_layer_cnn, IMAGES),
    "cnn_cifar": (partial(cnn.cifar_cnn, dropout=0.3, dense=16), RGB),
    "vgg_small": (partial(cnn.vgg_small, widths=[4, 8], dense=12, activation="tanh"), RGB),
    "resnet18": (resnet.resnet18, (3, 8, 8)),
    "resnet18 imagenet stem": (partial(resnet.resnet18, stem="imagenet", norm="none"), (1, 16, 16)),
    "lstm": (partial(lstm.lstm, vocabulary=11, embedding=5, hidden=6), (7,)),
}


CLIENTS, PER_CLIENT, CLASSES = 3, 9, 4


def make(name: str, double: bool = True, seed: int = 0):
    """Network, layout, start rows and samples of a small problem."""
    torch.manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    build, shape = MODELS[name]
    network = Network(nn.Identity(), build(shape, CLASSES)).to(dtype)
    layout, stats = Layout.of_parameters(network), Layout.of_statistics(network)
    count = CLIENTS * PER_CLIENT
    if name == "lstm":
        x = torch.randint(0, 11, (count, *shape))
    elif len(shape) == 3:
        x = torch.randint(0, 256, (count, *shape)).to(torch.uint8)
    else:
        x = torch.randn(count, *shape)
    y = torch.randint(0, CLASSES, (count,))
    data = Data("test", x, y, x[:1], y[:1], CLASSES, (0.5,), (0.5,))
    parts = np.split(np.random.default_rng(0).permutation(count), [PER_CLIENT - 3, 2 * PER_CLIENT])
    samples = ClientData.of(data, "train", parts, "cpu", dtype)
    rows = layout.flatten(network).expand(CLIENTS, -1).clone()
    rows += 0.05 * torch.randn(rows.shape, dtype=dtype)  # every client starts elsewhere
    buffers = stats.flatten(network).to(dtype).expand(CLIENTS, -1).clone()
    return network, layout, stats, rows, buffers, samples
