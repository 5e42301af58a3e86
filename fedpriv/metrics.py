"""Accuracy in both views, and how far apart the clients' training losses are (PrivateFL section 2.3)."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from fedpriv.engine.work import Samples

EMD_CLIENTS = 200  # pairs grow with the square; more clients are thinned out evenly
_BLOCK = 64  # clients whose personal networks are laid out at once


@dataclass(frozen=True)
class Evaluation:
    """`local`: each client's network on its own test split; `whole`: on all test data, mean of clients."""

    correct: np.ndarray  # [K] correct answers on the own split
    loss: np.ndarray  # [K] summed loss on the own split
    count: np.ndarray  # [K] samples of the own split
    accuracy_whole: float
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


def evaluate(engine, theta: Tensor, home: Tensor, statistics: Tensor, data: Samples) -> Evaluation:
    """Both views; without personal layers one pass over the test set answers for every client."""
    count = data.size.numpy()
    clients, everything = len(count), torch.arange(len(data.y), device=theta.device)
    inside = torch.arange(data.owned.shape[1])[None, :] < data.size[:, None]  # [K, widest]
    inside = inside.to(theta.device)
    if home.shape[1] == 0 and statistics.shape[1] == 0:
        loss, correct = engine.predict(theta[None], statistics[:1], everything[None], data)
        own_loss = torch.where(inside, loss[0][data.owned], 0).sum(1)
        own_correct = (correct[0][data.owned] & inside).sum(1)
        whole = (float(correct.cpu().double().mean()), float(loss.cpu().double().mean()))
        return Evaluation(own_correct.cpu().numpy(), own_loss.cpu().numpy(), count, *whole)
    own_loss, own_correct = torch.zeros(clients), torch.zeros(clients)
    accuracy = mean_loss = 0.0
    for first in range(0, clients, _BLOCK):
        block = slice(first, min(first + _BLOCK, clients))
        rows = torch.cat([theta.expand(len(home[block]), -1), home[block]], 1)
        loss, correct = engine.predict(rows, statistics[block], everything.expand(len(rows), -1), data)
        mine, real = data.owned[block], inside[block]
        own_loss[block] = torch.where(real, loss.gather(1, mine), 0).sum(1).cpu().to(own_loss)
        own_correct[block] = (correct.gather(1, mine) & real).sum(1).cpu().to(own_correct)
        accuracy += float(correct.cpu().double().mean(1).sum()) / clients
        mean_loss += float(loss.cpu().double().mean(1).sum()) / clients
    return Evaluation(own_correct.numpy(), own_loss.numpy(), count, accuracy, mean_loss)


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
