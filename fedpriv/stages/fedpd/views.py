"""What a classifier can read in x, x_s = G(x) and x_g = x - G(x) (FedPD, Figure 2c), on test data.

Three classifiers of the run's model: the distillation's auxiliary one, and two trained here on all clients'
samples together, on x and on x_g without noise. A diagnostic on raw data: nothing about it is private.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.data import ClientData
from fedpriv.engine.dropout import name_dropouts
from fedpriv.randomness.source import Source, generator, key_of
from fedpriv.session.screen import Notes
from fedpriv.stages.fedpd.release import features
from fedpriv.stages.fedpd.vae import Distiller

VIEWS = ("x", "x_s", "x_g")
_BLOCK = 512


def seen(x: Tensor, view: str, distiller: Distiller) -> Tensor:
    """[B, ...]; x itself, what the distiller keeps of it, or what is left."""
    if view == "x_s":
        with torch.no_grad():
            kept: Tensor = distiller(x)
            return kept
    return features(x, distiller if view == "x_g" else None)


def train(
    classifier: nn.Module,
    data: ClientData,
    view: str,
    distiller: Distiller,
    *,
    epochs: int,
    seed: int,
    batch_size: int = 64,
    lr: float = 1e-3,
) -> nn.Module:
    """Passes over all clients' samples as `view` shows them."""
    numbers = data.all_owned
    dropouts = name_dropouts(classifier)
    optimiser = torch.optim.AdamW(classifier.train().parameters(), lr=lr)
    order, source = generator(seed, "views", view), Source(key_of(seed, f"views of {view}"))
    notes = Notes(f"training a classifier on {view}: pass", epochs)
    for epoch in range(epochs):
        shuffled = numbers[torch.randperm(len(numbers), generator=order).to(numbers.device)]
        for step, batch in enumerate(shuffled.split(batch_size)):
            if len(batch) < 2:
                continue  # norms over a batch need two
            x, y = data.take(batch)
            for dropout in dropouts:
                dropout.name(source.of(epoch), batch, step)
            optimiser.zero_grad()
            F.cross_entropy(classifier(seen(x, view, distiller)), y).backward()
            optimiser.step()
        notes.show(epoch + 1)
    return classifier.eval()


@torch.no_grad()
def accuracy(classifier: nn.Module, data: ClientData, view: Callable[[Tensor], Tensor]) -> float:
    """On all samples."""
    right = 0
    for block in torch.arange(len(data.y), device=data.y.device).split(_BLOCK):
        x, y = data.take(block)
        right += int((classifier(view(x)).argmax(1) == y).sum())
    return right / len(data.y)
