"""Tree aggregation with restarts (Kairouz et al. 2021, DP-FTRL-TreeRestart).

Every `restart` rounds begins a new binary tree, whose leaves are rounds. A node has noise of its own and is
complete after its last leaf; a prefix sum is read from the complete subtrees to its left. A subtree is
estimated from its own node and its two halves by the smallest variance (Honaker 2015, as in the paper): with
v_h = 2 v_(h-1) / (2 v_(h-1) + 1), v_0 = 1, the own node weighs v_h and the halves 1 - v_h.

C has a row for every node: the leaves below it. A client that takes part j times, any two at least b apart,
is in a node of w leaves at most ceil(w / b) times. So the squared counts of one level sum up to at most
j min(j, ceil(w / b)); this bound is the sensitivity, and exact where trees are b rounds long.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.correlation.base import Correlation, Normal


class Tree(Correlation):
    def __init__(self, rounds: int, restart: int):
        self.rounds, self.restart = rounds, min(restart, rounds)
        self._leaves = 0  # of the tree at hand
        self._stack: list[tuple[int, Tensor]] = []  # height and noise of complete subtrees, left to right
        self._sum: Tensor | None = None  # of the noise of all rows of this tree

    def sensitivities(self, times: int, separation: int) -> np.ndarray:
        full = (times - 1) * separation + 2 ** (self.restart.bit_length() - 1)  # rounds of the worst pattern
        self.exact = self.restart == separation and full <= self.rounds
        counts = np.arange(1, times + 1)
        widths = 2 ** np.arange(self.restart.bit_length())
        squares = sum(counts * np.minimum(counts, -(-int(w) // separation)) for w in widths)
        return np.asarray(np.sqrt(squares))

    def variances(self) -> np.ndarray:
        variance = [1.0]
        while len(variance) < self.restart.bit_length():
            variance.append(2 * variance[-1] / (2 * variance[-1] + 1))

        def within(leaves: int) -> float:
            return sum(v for height, v in enumerate(variance) if leaves >> height & 1)

        done = np.arange(1, self.rounds + 1)
        whole, rest = done // self.restart, done % self.restart
        pairs = zip(whole.tolist(), rest.tolist(), strict=True)
        return np.array([w * within(self.restart) + within(r) for w, r in pairs])

    def row(self, normal: Normal) -> Tensor:
        if self._leaves == self.restart:  # what it has told stays told: later rows add to it
            self._leaves, self._stack, self._sum = 0, [], None
        height, noise, variance = 0, normal(0), 1.0
        while self._stack and self._stack[-1][0] == height:
            _, left = self._stack.pop()
            height, variance = height + 1, 2 * variance / (2 * variance + 1)
            noise = variance * normal(height) + (1 - variance) * (left.to(noise) + noise)
        self._stack.append((height, noise))
        self._leaves += 1
        total = torch.stack([part.to(noise) for _, part in self._stack]).sum(0)
        before, self._sum = self._sum, total
        return total if before is None else total - before.to(total)

    def state(self) -> dict[str, Any]:
        return {"leaves": self._leaves, "stack": self._stack, "sum": self._sum}

    def load(self, state: dict[str, Any]) -> None:
        self._leaves, self._sum = state["leaves"], state["sum"]
        self._stack = [(height, noise) for height, noise in state["stack"]]

    @property
    def memory(self) -> int:
        return self.restart.bit_length() + 1
