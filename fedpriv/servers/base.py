"""How the server steps: from what the algorithm makes of a round's update to the next global model.

A step sees what the mechanism has released and the model before it, nothing else: post-processing, which
costs no privacy.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from fedpriv.parts.base import Part


class Server(Part, ABC):
    @abstractmethod
    def step(self, theta: Tensor, move: Tensor) -> Tensor:
        """The next global model [D], given how far the algorithm would go, [D]."""


class SGD(Server):
    """server=sgd: theta <- theta + move (McMahan et al. 2017). Its rate is the algorithm's `server_lr`."""

    def step(self, theta: Tensor, move: Tensor) -> Tensor:
        return theta + move
