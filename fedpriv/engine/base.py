"""What trains clients: every engine gives the same numbers, to rounding."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpriv.engine.data import ClientData
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Rows, Trained, Work


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(ABC):
    name: str

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        buffers: Layout,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ):
        self.layout, self.buffers, self.device = layout, buffers, torch.device(device)
        self.workers = (threads or cores()) if self.device.type == "cpu" else 1

    @abstractmethod
    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        """Which participants are trained together.

        It follows from the work alone: whom a client is computed with shows in its last bits, and a run gives
        the same ones whatever the number of threads and processes.
        """

    @abstractmethod
    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        """All local steps of a round, of some of the groups or of all; `work.rows` and `work.buffers` are
        trained in place."""

    @abstractmethod
    def predict(
        self, rows: Tensor, buffers: Tensor, index: Tensor, data: ClientData, alike: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Loss and correctness of each client's network on samples `index` [C, N]: two [C, N] tensors.

        `alike` says that the clients share the samples and all weights that are not kept at home.
        """
