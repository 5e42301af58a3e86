"""Embedding and stacked LSTM layers for token sequences (PFA's IMDb model).

The cells are written out on nn.Linear, so per-sample gradients follow from the rule for matrices: the
recurrent matrix is one layer called once per word.
"""

import itertools
from typing import Annotated

import torch
from torch import Tensor, nn

from fedpriv.config.limits import Width, Within
from fedpriv.errors import UserError
from fedpriv.models.parts import Activation


class Cell(nn.Module):
    """One LSTM layer over a sequence: gates i, f, g, o; one bias, as the input product has it."""

    def __init__(self, inputs: int, hidden: int, squash: Activation):
        super().__init__()
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        self.hidden = hidden
        self.squash = torch.tanh if squash == "tanh" else torch.relu

    def forward(self, x: Tensor) -> Tensor:  # [N, T, inputs] -> [N, T, hidden]
        projected = self.input(x)
        h = c = x.new_zeros(x.shape[0], self.hidden)
        outputs = []
        for step in range(x.shape[1]):
            i, f, g, o = (projected[:, step] + self.recurrent(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * self.squash(g)
            h = torch.sigmoid(o) * self.squash(c)
            outputs.append(h)
        return torch.stack(outputs, 1)


class LSTM(nn.Module):
    def __init__(
        self, vocabulary: int, classes: int, embedding: int, hidden: int, layers: int, squash: Activation
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        widths = [embedding] + [hidden] * layers
        self.cells = nn.Sequential(*(Cell(a, b, squash) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(self.embed(tokens))[:, -1])
        return logits


def lstm(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int,
    *,
    embedding: Width = 32,
    hidden: Width = 32,
    layers: Annotated[int, Within(least=1, most=100)] = 2,
    activation: Activation = "tanh",
) -> nn.Module:
    if not vocabulary:
        raise UserError("model=lstm needs a dataset of words, such as dataset=imdb")
    return LSTM(vocabulary, classes, embedding, hidden, layers, activation)
