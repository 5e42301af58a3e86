"""A small setting and its rounds, for parts that are tried alone."""

import numpy as np
import torch

from fedpriv.engine.layout import Layout
from fedpriv.privacy import accountants
from fedpriv.privacy.ledger import Ledger
from fedpriv.rounds.setting import Round, Setting

DIMENSION = 6


def setting(
    clients=5, rounds=10, rate=1.0, epsilon=8.0, sizes=None, batch=10, tensors=3, delta=1e-3, steps=None
) -> Setting:
    sizes = np.full(clients, 40) if sizes is None else np.array(sizes)
    per_epoch = -(-sizes // batch)
    width = DIMENSION // tensors
    return Setting(
        dataset="test",
        clients=clients,
        rounds=rounds,
        sample_rate=rate,
        batch_size=batch,
        sizes=sizes,
        steps=np.full(clients, steps) if steps else per_epoch,
        epochs_steps=per_epoch,
        layout=Layout({f"t{i}": torch.zeros(width) for i in range(tensors)}),
        budgets=np.full(clients, epsilon) if np.isscalar(epsilon) else np.array(epsilon),
        delta=delta,
        accountant=accountants.create("rdp"),
        device=torch.device("cpu"),
    )


def round_of(facts: Setting, clients=None, secret=False) -> Round:
    clients = np.arange(facts.clients) if clients is None else np.array(clients)
    expected = facts.sample_rate * facts.clients if secret else len(clients)
    noise = np.ones(facts.clients)
    return facts.round(0, clients, expected, secret, lr=0.1, noise=noise, start=torch.zeros(DIMENSION))


def epsilon_of(guarantee, facts: Setting, rounds: int, which="claimed") -> float:
    ledger = Ledger(guarantee, facts.budgets, facts.delta, facts.accountant)
    return float(getattr(ledger, which)(np.full(facts.clients, rounds)).max())
