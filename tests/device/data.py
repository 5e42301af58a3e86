"""Data sets of a few random samples, for models that digits do not fit, and a model without stacked rules."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.datasets.data import Data

_SAMPLES = 60


class Few:
    """Colour images with a scale for each channel, or sequences of words."""

    parts = ()

    def __init__(self, *, kind: Literal["images", "words"] = "images", side: int = 20, test_size: int = 0):
        self.kind, self.side = kind, side

    def load(self, data_dir: Path) -> Data:
        random = torch.Generator().manual_seed(0)
        labels = torch.arange(_SAMPLES) % 10
        if self.kind == "words":
            words = torch.randint(20, (_SAMPLES, 4), generator=random)
            return Data("few", words, labels, words, labels, classes=10, vocabulary=20)
        shape = (_SAMPLES, 3, self.side, self.side)
        pixels = torch.randint(256, shape, generator=random, dtype=torch.uint8)
        return Data(
            "few",
            pixels,
            labels,
            pixels,
            labels,
            classes=10,
            mean=(0.5, 0.4, 0.3),
            std=(0.2, 0.3, 0.4),
            owners=(torch.arange(_SAMPLES) % 3,),
        )


class _Odd(nn.Module):
    """A parameter of a module that nobody wrote a rule for."""

    def __init__(self, shape: tuple[int, ...], classes: int, dropout: float):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.1, 0.1, 64 * classes).view(64, classes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x.flatten(1)) @ self.weight


def odd(shape: tuple[int, ...], classes: int, *, dropout: float = 0.0) -> nn.Module:
    return _Odd(shape, classes, dropout)
