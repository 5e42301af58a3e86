"""Training samples as each client's own transform hands them to the model (PrivateFL, Figures 9 and 10).

A diagnostic, and nothing about it is private: samples.npz and samples.png show raw training samples.
"""

import copy
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.building import Run
from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.rounds.trainer import Trainer
from fedpriv.session.claim import SAMPLES

CLIENTS = 10
_PREFIX = "transform."  # of the transform's tensors in the network


class KeptSamples:
    """The first sample of each of the first ten clients that have one, kept after the wanted rounds."""

    def __init__(self, rounds: Iterable[int], run: Run):
        self.wanted = sorted(set(rounds))
        self.kept: dict[int, Tensor] = {}  # round -> [clients, c, h, w]
        if not self.wanted:
            return
        if isinstance(run.transform, nn.Identity):
            raise UserError(
                f"samples_at={self.wanted}: transform=none changes no sample; use transform=linear or leave "
                "samples_at empty"
            )
        shape = run.data.shape
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise UserError(
                f"samples_at={self.wanted}: samples of shape {shape} are not grey or colour images; leave "
                "samples_at empty"
            )
        train = run.trainer.train
        self.transform = copy.deepcopy(run.transform).to(train.x.device).eval()
        self.clients = torch.nonzero(train.size)[:CLIENTS, 0]
        self.original, self.labels = train.take(train.owned[self.clients, 0])

    @property
    def not_covered(self) -> list[str]:
        """For the privacy report."""
        return [f"{' and '.join(SAMPLES)}: raw training samples, not private"] if self.wanted else []

    @torch.no_grad()
    def keep(self, trainer: Trainer) -> None:
        """To be called before training and after every round."""
        if trainer.next_round not in self.wanted or trainer.next_round in self.kept:
            return
        who, images, store = self.clients, [], trainer.store
        parts = [who, *[who[:0]] * (trainer.ranks.count - 1)]
        with trainer.ranks.everywhere("fetch", parts):
            store.fetch(parts)
        at = store.at(who)
        rows = torch.cat([trainer.theta.expand(len(who), -1), store["home"][at]], 1)
        tensors = trainer.setting.layout.views(rows)
        tensors |= trainer.engine.buffers.views(store["statistics"][at])
        own = {n.removeprefix(_PREFIX): t for n, t in tensors.items() if n.startswith(_PREFIX)}
        for k, x in enumerate(self.original):
            images.append(functional_call(self.transform, {n: t[k] for n, t in own.items()}, (x[None],))[0])
        self.kept[trainer.next_round] = torch.stack(images)

    def state(self) -> dict[str, Any]:
        """For the checkpoint: a continued run then has what it kept before."""
        return {"kept": self.kept}

    def load(self, state: dict[str, Any]) -> None:
        self.kept = {r: images.to(self.original) for r, images in state.get("kept", {}).items()}

    def write(self, folder: Path) -> None:
        """samples.npz, and samples.png with clients as columns and rounds as rows, the original on top."""
        if not self.kept:
            return
        from fedpriv.figures.grid import grid  # matplotlib, for those who want the picture
        from fedpriv.figures.saving import save_png

        rounds = sorted(self.kept)
        original, labels, clients = (t.cpu().numpy() for t in (self.original, self.labels, self.clients))
        transformed = torch.stack([self.kept[r] for r in rounds]).cpu().numpy()
        buffer = io.BytesIO()
        np.savez(
            buffer,
            original=original,
            transformed=transformed,
            rounds=np.array(rounds),
            clients=clients,
            labels=labels,
        )
        write_atomically(folder / SAMPLES[0], buffer.getvalue())
        images, names = [original, *transformed], ["original", *(f"round {r}" for r in rounds)]
        if rounds[0] == 0 and np.array_equal(original, transformed[0]):
            del images[1], names[1]
            names[0] = "round 0\n(original)"
        figure = grid(
            [list(row) for row in images],
            rows=names,
            columns=[f"client {k}\nclass {y}" for k, y in zip(clients, labels, strict=True)],
            title="A training sample of each client, as its own transform hands it to the model",
            shared=True,
        )
        save_png(figure, folder / SAMPLES[1])
