"""PP-SGD (Bietti et al. 2022): an additive personal model, theta + p_k, with p_k kept at home.

Both parts have the same gradient g; a local step moves theta by -lr g and p_k by -lr mixing g, so their sum
moves by (1 + mixing) lr g and the whole is local SGD from theta + p_k, whose way is split at the end. Mixing
0 is FedAvg, a large mixing trains mostly alone.

The personal model sees raw data and is never released; only theta's share of the way goes through the
mechanism, which must therefore act on updates.
"""

import torch
from torch import Tensor

from fedpriv.algorithms.base import Rates
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.config.limits import Momentum, NotNegative, Positive
from fedpriv.errors import UserError
from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import AlgorithmFacts
from fedpriv.rounds.setting import Round
from fedpriv.rounds.store import ClientStore


class PPSGD(FedAvg):
    facts = AlgorithmFacts(personal=True, keeps=("personal",))

    def __init__(
        self, *, mixing: NotNegative = 1.0, server_lr: Positive = 1.0, server_momentum: Momentum = 0.0
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        if mixing < 0:
            raise UserError(f"algorithm.mixing={mixing:g}: must not be negative")
        self.mixing = mixing

    def start(self, theta: Tensor, clients: Tensor, store: ClientStore) -> Tensor:
        return theta + store["personal"][store.at(clients)].to(theta.dtype)

    def rates(self, round_: Round, steps: int) -> Rates:
        """A transform is not split, so it takes plain steps."""
        return Rates([(1 + self.mixing) * round_.lr] * steps, home=round_.lr)

    @by_client
    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        clients = torch.as_tensor(round_.clients, device=local.device)
        moved = (local - self.start(round_.start, clients, store)) / (1 + self.mixing)
        store["personal"][store.at(clients)] += (self.mixing * moved).to(store["personal"].dtype)
        return moved
