"""How clients train and how far the server shall go with an update. Each method is one place to differ."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedpriv.engine.work import Rows
from fedpriv.parts.base import Part, by_client
from fedpriv.parts.declarations import AlgorithmFacts
from fedpriv.rounds.setting import Round
from fedpriv.rounds.store import ClientStore

Correction = Callable[[Tensor, Rows], Tensor]


@dataclass(frozen=True)
class Rates:
    """The learning rate of every local step; `home` is that of what stays at home where it has none of its
    own (None: as the sent weights)."""

    sent: list[float]
    home: float | None = None


class Algorithm(Part, ABC):
    facts = AlgorithmFacts()

    # -- on the client

    def home(self, network: nn.Module) -> set[str]:
        """Names of model parameters that never leave a client."""
        return set()

    def start(self, theta: Tensor, clients: Tensor, store: ClientStore) -> Tensor:
        """The sent weights each client trains and is judged from, [C, D]."""
        return theta.expand(len(clients), -1)

    def rates(self, round_: Round, steps: int) -> Rates:
        return Rates([round_.lr] * steps)

    def correction(
        self, round_: Round, store: ClientStore, gradients: Tensor | None = None
    ) -> Correction | None:
        """A term added to the sent gradient at each local step: (weights [c, D], rows) -> [c, D].

        `gradients` [C, D] are the participants' over all their data, at the model they start from. They are
        raw and cost a pass, and are made only where the facts say `raw_gradients`.
        """
        return None

    @by_client
    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        """What a client wants the server to know, [C, D']: here how far it moved from the broadcast model."""
        return local - round_.start

    # -- on the server

    @abstractmethod
    def move(self, update: Tensor, round_: Round) -> Tensor:
        """How far the global model shall go, [D], given the update [D']; the server's step goes (servers)."""
