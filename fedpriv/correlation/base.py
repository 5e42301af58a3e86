"""What every correlation of noise over rounds is: an encoder matrix C and its rows of noise, made one by one.

Releasing C x + z, z standard normal, tells of every prefix sum A x its unbiased estimate A x + B z with
B C = A (Denisov et al. 2022). So every round's sum x_t may be published with noise y_t, where y_1 + ... +
y_t is row t of B z; for a square C, y = C^-1 z. All rounds together are one Gaussian release, of sensitivity

    max over patterns of rounds of || sum_i C_i g_i^T ||,  ||g_i|| <= 1,

over the columns C_i of the rounds in which one client takes part: at most `times` of them, any two at least
`separation` apart. It holds too for updates that depend on what was published before (Denisov et al.).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

Normal = Callable[[int], Tensor]  # the standard normals [D] of this round, several: 0, 1, ...


class Correlation(ABC):
    exact: bool  # whether `sensitivities` is exact, or only never too small

    @abstractmethod
    def sensitivities(self, times: int, separation: int) -> np.ndarray:
        """The sensitivity after 1, 2, ..., `times` participations, [times]."""

    @abstractmethod
    def variances(self) -> np.ndarray:
        """The variance of the noise in every prefix sum, [rounds], before it is scaled."""

    @abstractmethod
    def row(self, normal: Normal) -> Tensor:
        """The noise of the next round, [D]."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The rows that the next ones depend on."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None: ...

    @property
    @abstractmethod
    def memory(self) -> int:
        """Vectors of the model's size that it keeps."""
