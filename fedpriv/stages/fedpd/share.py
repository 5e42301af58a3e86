"""A client's part of the shared set (FedPD, Algorithm 1): of its own size, balanced over the classes."""

import torch
from torch import Tensor

from fedpriv.engine.batches import Plan, steps_per_epoch


class Shared:
    """Sample numbers of the shared set by class; a class nobody holds is left out."""

    def __init__(self, labels: Tensor, classes: int):
        every = (torch.nonzero(labels.cpu() == c)[:, 0] for c in range(classes))
        self.of_class = [numbers for numbers in every if len(numbers)]

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """`size` numbers, equally many of each class up to one; without repetition while a class lasts."""
        classes = len(self.of_class)
        counts = torch.full((classes,), size // classes)
        counts[torch.randperm(classes, generator=generator)[: size % classes]] += 1
        return torch.cat(
            [
                self._of(numbers, count, generator)
                for numbers, count in zip(self.of_class, counts.tolist(), strict=True)
            ]
        )

    @staticmethod
    def _of(numbers: Tensor, count: int, generator: torch.Generator) -> Tensor:
        passes = -(-count // len(numbers))
        order = [torch.randperm(len(numbers), generator=generator) for _ in range(passes)]
        return numbers[torch.cat(order)[:count]] if passes else numbers[:0]


def in_order(sizes: Tensor, batch_size: int, active: Tensor) -> tuple[Plan, int]:
    """Batches of things that lie in the order of their use, pass behind pass; and how many passes there are.

    sizes: [C], things in a pass, whose last batch may be short; active: [C, T], steps that are taken.
    """
    step, entry = torch.arange(active.shape[1]), torch.arange(batch_size)
    per_pass = steps_per_epoch(sizes, batch_size)[:, None]  # [C, 1]
    done, place = step // per_pass, step % per_pass * batch_size
    size = (sizes[:, None] - place).clamp(max=batch_size) * active
    index = (done * sizes[:, None] + place)[..., None] + entry  # [C, T, B]
    index.masked_fill_(entry >= size[..., None], 0)
    return Plan(index, size, active), int((done * active).max()) + 1
