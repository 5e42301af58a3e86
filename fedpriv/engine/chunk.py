"""Some of a round's participants side by side: all that their local steps read and write."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Work


@dataclass(frozen=True)
class Chunk:
    """C clients, T steps of at most B samples. Participants given as a slice use the round's own memory.
    Given as positions, sorted by falling number of steps, they are copied, and those who are done can leave
    from the end."""

    here: Rows
    who: Tensor  # [C] client numbers
    rows: Tensor  # [C, P]
    statistics: Tensor  # [C, F]
    measured: Tensor | None  # [C, P]
    velocity: Tensor | None  # [C, P]
    samples: Tensor  # [C, T, B] sample numbers
    masks: Tensor  # [C, T, B], one where there is a sample
    owns: Tensor  # [C, T, B], one where it is the client's own
    sizes: Tensor  # [C, T] own samples
    shared: Tensor | None  # [C, T] shared ones
    active: Tensor  # [C, T]

    @classmethod
    def of(cls, work: Work, data: ClientData, chosen: Rows) -> "Chunk":
        device, dtype, plan = work.rows.device, work.rows.dtype, work.plan.rows(chosen)
        here = chosen if isinstance(chosen, slice) else chosen.to(device)
        # .data: chunks of one buffer change in different threads, so each needs a version counter of its own.
        rows, statistics = work.rows.data[here], work.buffers.data[here]
        owned = data.owned[work.clients[chosen].to(device)]  # [C, widest]
        sizes, taken = plan.size.to(device), plan.taken.to(device)
        places = torch.arange(plan.index.shape[2], device=device)
        masks = (places < taken[:, :, None]).to(dtype)
        return cls(
            here=here,
            who=work.clients[chosen].to(device),
            rows=rows,
            statistics=statistics,
            measured=None if work.measured is None else work.measured.data[here],
            velocity=torch.zeros_like(rows) if work.momentum else None,
            samples=owned.gather(1, plan.index.to(device).flatten(1)).view(plan.index.shape),
            masks=masks,
            owns=masks if plan.shared is None else (places < sizes[:, :, None]).to(dtype),
            sizes=sizes,
            shared=None if plan.shared is None else plan.shared.to(device),
            active=plan.active.to(device, dtype),
        )

    def first(self, count: int) -> "Chunk":
        """The first clients only, in the same memory."""
        head: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            head[field.name] = None if value is None else value[:count]
        return Chunk(**head)

    def move(self, work: Work, gradient: Tensor, step: int, sent: int) -> None:
        """A step along a gradient [C, P] with momentum, weight decay, an algorithm's correction and a
        learning rate of its own at home; `sent`: how many weights of a row are shared."""
        if work.weight_decay:
            gradient.add_(self.rows, alpha=work.weight_decay)
        if work.correction:
            gradient[:, :sent] += work.correction(self.rows[:, :sent], self.here)
        if self.velocity is not None:
            gradient = self.velocity.mul_(work.momentum).add_(gradient)
        change, lr = gradient * self.active[:, step, None], work.lr[step]
        self.rows[:, :sent].sub_(change[:, :sent], alpha=lr)
        self.rows[:, sent:].sub_(change[:, sent:], alpha=lr if work.home_lr is None else work.home_lr)

    def write(self, work: Work) -> None:
        """Put copies back where they came from."""
        if isinstance(self.here, Tensor):
            work.rows.data[self.here], work.buffers.data[self.here] = self.rows, self.statistics
            if work.measured is not None and self.measured is not None:
                work.measured.data[self.here] = self.measured
