"""Accuracy in both views, and how far apart the clients' training losses are (PrivateFL section 2.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.accelerator import widest
from fedpriv.engine.data import ClientData
from fedpriv.ranks.group import ALONE, Ranks
from fedpriv.rounds.store import ClientStore

EMD_CLIENTS = 200  # pairs grow with the square; more clients are thinned out evenly
WHOLE_CLIENTS = 500  # more personal networks are thinned out evenly for the view on the whole test set
_BLOCK = 32  # clients whose personal networks are laid out at once
_SAMPLES = 2048  # of one network for all, judged at once


@dataclass(frozen=True)
class Evaluation:
    """`local`: each client's network on its own test split; `whole`: on all test data, mean of clients."""

    correct: np.ndarray  # [K] correct answers on the own split
    loss: np.ndarray  # [K] summed loss on the own split
    count: np.ndarray  # [K] samples of the own split
    accuracy_global: float
    loss_whole: float

    @property
    def accuracy_local(self) -> float:
        """Total correct over total samples, as PrivateFL reports it."""
        return float(self.correct.sum() / max(1, self.count.sum()))

    @property
    def loss_local(self) -> float:
        return float(self.loss.sum() / max(1, self.count.sum()))

    @property
    def accuracy_of_clients(self) -> np.ndarray:
        """[K], nan for a client without test samples."""
        return np.where(self.count > 0, self.correct / np.maximum(1, self.count), np.nan)

    @property
    def loss_of_clients(self) -> np.ndarray:
        return np.where(self.count > 0, self.loss / np.maximum(1, self.count), np.nan)


class Predictor(Protocol):
    """What evaluation asks of an engine: two [C, N] tensors, the losses and which predictions are right."""

    def predict(
        self, rows: Tensor, buffers: Tensor, index: Tensor, data: ClientData, alike: bool = False
    ) -> tuple[Tensor, Tensor]: ...


def evaluate(
    engine: Predictor,
    models: Callable[[Tensor], Tensor],
    store: ClientStore,
    data: ClientData,
    personal: bool = False,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Both views; without personal layers one pass over the test set answers for every client.

    `models` gives the shared weights clients start from, [c, D] for client numbers [c]; `personal` says that
    these differ between clients. The whole test set is judged by at most WHOLE_CLIENTS personal networks.
    `ranks` share the blocks of clients or samples.
    """
    home, statistics = store["home"], store["statistics"]
    count, device = data.size.numpy(), home.device
    clients, everything = len(count), torch.arange(len(data.y), device=device)
    inside = torch.arange(data.owned.shape[1])[None, :] < data.size[:, None]  # [K, widest]
    inside = inside.to(device)
    if not personal and home.shape[1] == 0 and statistics.shape[1] == 0:
        theta = models(torch.zeros(1, dtype=torch.int64, device=device))
        seen = theta.new_zeros(len(everything), 2)  # each sample's loss, and whether the answer is right
        for some in ranks.share(pieces := everything.split(_SAMPLES)):
            loss, correct = engine.predict(theta, statistics[:1], some[None], data)
            seen[some] = torch.stack([loss[0], correct[0].to(loss.dtype)], 1)
        ranks.complete(pieces, seen)
        own = torch.where(inside[:, :, None], seen[data.owned], 0).sum(1).cpu().numpy()  # [K, 2]
        mean_loss, accuracy = seen.cpu().double().mean(0).tolist()
        return Evaluation(own[:, 1], own[:, 0], count, accuracy, mean_loss)

    def of(block: Tensor, index: Tensor, alike: bool) -> tuple[Tensor, Tensor]:
        at = store.at(block)
        rows = torch.cat([models(block), store["home"][at]], 1)
        return engine.predict(rows, store["statistics"][at], index, data, alike)

    judges = torch.linspace(0, clients - 1, min(clients, WHOLE_CLIENTS), device=device).long()
    blocks, places = (
        torch.arange(clients, device=device).split(_BLOCK),
        torch.arange(len(judges)).split(_BLOCK),
    )
    store.fetch(
        [
            torch.cat(
                [judges[:0], *ranks.share(blocks, r), *(judges[p.to(device)] for p in ranks.share(places, r))]
            )
            for r in range(ranks.count)
        ]
    )
    of_own = torch.zeros(clients, 2, device=device)  # summed loss and right answers
    for block in ranks.share(blocks):
        loss, correct = of(block, data.owned[block], False)
        both = torch.stack([torch.where(inside[block], loss, 0).sum(1), (correct & inside[block]).sum(1)], 1)
        of_own[block] = both.to(of_own)
    of_whole = torch.zeros(len(judges), 2, dtype=torch.float64)  # mean loss and accuracy
    for place in ranks.share(places):
        block = judges[place.to(device)]
        loss, correct = of(block, everything.expand(len(block), -1), not personal)
        means = (each.to(widest(device)).mean(1).cpu().double() for each in (loss, correct))
        of_whole[place] = torch.stack([*means], 1)
    ranks.complete(blocks, of_own)
    ranks.complete(places, of_whole)
    own, (mean_loss, accuracy) = of_own.cpu().numpy(), of_whole.mean(0).tolist()
    return Evaluation(own[:, 1], own[:, 0], count, accuracy, mean_loss)


def earth_movers_distances(history: np.ndarray) -> tuple[float, float]:
    """Mean and deviation, over pairs of clients, of the distance between their loss distributions.

    `history` [rounds, K] holds a training loss per participation and nan elsewhere. In one dimension the
    distance is the area between the distribution functions, evaluated on the pooled losses.
    """
    seen = np.isfinite(history)
    clients = np.flatnonzero(seen.any(0))
    if len(clients) > EMD_CLIENTS:
        clients = clients[np.linspace(0, len(clients) - 1, EMD_CLIENTS).astype(int)]
    if len(clients) < 2:
        return float("nan"), float("nan")
    from scipy.spatial.distance import pdist  # after the last round only

    history, seen = history[:, clients], seen[:, clients]
    if seen.sum(0).min() == seen.sum(0).max():  # equal counts: match the sorted losses
        ordered = np.sort(np.where(seen, history, np.inf), axis=0)[: seen[:, 0].sum()].T
        distances = pdist(ordered, "cityblock") / ordered.shape[1]
    else:
        values = np.unique(history[seen])
        cdf = np.stack([_cdf(history[seen[:, k], k], values) for k in range(len(clients))])
        distances = pdist(cdf[:, :-1], "cityblock", w=np.diff(values)) if len(values) > 1 else np.zeros(1)
    return float(distances.mean()), float(distances.std())


def _cdf(losses: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(losses), at, side="right") / len(losses)
