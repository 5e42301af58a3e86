"""Who computes what in a run over several processes, and how they exchange it.

Every rank has the whole run before it: the same data, ledger, draws and parts. What is divided are groups of
clients, whose makeup does not depend on the number of ranks; what a rank made of its groups, all get. So the
numbers are those of one process, to the last bit, whatever the number of ranks.
"""

import io
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from fedpriv.engine.work import Rows
from fedpriv.errors import UserError

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # without a word from another rank; one that ends is noticed at once
_PIECE = 64 << 20  # bytes of each rank exchanged at once


class Lost(UserError):
    """Another rank has ended or does not answer."""


class Ranks:
    """One process: all there is, is its own."""

    rank, count = 0, 1
    here = 1  # ranks on this machine
    echo = 0.0

    def share(self, items: Sequence[T], rank: int | None = None) -> Sequence[T]:
        """The neighbouring ones of `items` that are a rank's, by default this one's."""
        at, total = self.rank if rank is None else rank, len(items)
        return items[total * at // self.count : total * (at + 1) // self.count]

    def complete(self, parts: Sequence[Rows], *tensors: Tensor) -> None:
        """Fill in what the others have made: of every tensor the rows of each of `parts` are right where it
        was somebody's share, and now everywhere."""

    def from_first(self, value: T) -> T:
        """The first rank's value."""
        return value

    def all_of(self, value: T) -> list[T]:
        """Everybody's value, in order."""
        return [value]

    @contextmanager
    def everywhere(self, task: str, *content: Any) -> Iterator[None]:
        """The first rank says what all do now, itself in the body (following.py: the others)."""
        yield

    def alike(self, make: Callable[[], T]) -> T:
        """What everybody makes, or one line of one who cannot."""
        return make()


ALONE = Ranks()


class Group(Ranks):
    """Several processes joined by torch.distributed: gloo between CPUs, nccl between GPUs."""

    def __init__(self, rank: int, count: int, here: int, store: TCPStore | None = None):
        self.rank, self.count, self.here = rank, count, here
        self.busy = False  # whether the others are doing something, instead of waiting for a word
        self.echo = 0.0  # seconds in which a launcher passes on a Ctrl-C that all have had already
        self.others: list[subprocess.Popen[bytes]] = []  # processes that this one has started
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        with _met():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpus else "gloo",
                store=store,
                rank=rank,
                world_size=count,
                timeout=TIMEOUT,
            )

    def complete(self, parts: Sequence[Rows], *tensors: Tensor) -> None:
        for tensor in tensors:
            if tensor.numel():
                self._complete(parts, tensor)

    def _complete(self, parts: Sequence[Rows], tensor: Tensor) -> None:
        numbers = torch.arange(len(tensor), device=tensor.device)
        nobody = numbers[:0]
        owned = [torch.cat([nobody, *(numbers[p] for p in self.share(parts, r))]) for r in range(self.count)]
        at_once = max(1, _PIECE // (tensor[0].numel() * tensor.element_size()))
        for first in range(0, max(map(len, owned)), at_once):
            places = [own[first : first + at_once] for own in owned]
            piece = tensor.new_zeros(max(map(len, places)), *tensor.shape[1:])
            piece[: len(places[self.rank])] = tensor[places[self.rank]]
            pieces = [torch.empty_like(piece) for _ in range(self.count)]
            with _met():
                dist.all_gather(pieces, piece)
            for rank, (place, made) in enumerate(zip(places, pieces, strict=True)):
                if rank != self.rank:
                    tensor[place] = made[: len(place)]

    def from_first(self, value: T) -> T:
        if isinstance(value, Tensor):
            with _met():
                dist.broadcast(value, 0)
            return value
        box = [value]
        with _met():
            dist.broadcast_object_list(box, 0)
        return box[0]

    def all_of(self, value: T) -> list[T]:
        file, boxes = io.BytesIO(), [b""] * self.count
        torch.save(value, file)
        with _met():
            dist.all_gather_object(boxes, file.getvalue())
        return [torch.load(io.BytesIO(box), map_location=_here, weights_only=False) for box in boxes]

    @contextmanager
    def everywhere(self, task: str, *content: Any) -> Iterator[None]:
        self.from_first((task, content))
        self.busy = True
        yield
        self.busy = False

    def hear(self) -> tuple[str, tuple[Any, ...]]:
        """What the first rank wants done; it never says so here."""
        said: tuple[str, tuple[Any, ...]] = self.from_first(("", ()))
        return said

    def alike(self, make: Callable[[], T]) -> T:
        from fedpriv.config.mistakes import explain

        problem, made = None, None
        try:
            made = make()
        except Exception as error:
            problem = error
        self.busy = False  # whoever fails, all know it
        said = problem and (explain(problem) or f"{type(problem).__name__}: {problem}")
        lines = self.all_of((said, socket.gethostname()))
        if problem:
            raise problem
        for rank, (line, host) in enumerate(lines):
            if line:
                raise UserError(f"rank {rank} on {host}: {line}")
        return made  # type: ignore[return-value]

    def leave(self) -> None:
        dist.destroy_process_group()


def _here(storage: Any, where: str) -> Any:
    """What another rank had on its GPU goes onto this one's."""
    return storage.cuda() if where.startswith("cuda") else storage


@contextmanager
def _met() -> Iterator[None]:
    """An exchange that fails means that another rank is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as problem:  # torch.distributed has several kinds of both
        reason = next(iter(str(problem).splitlines()), "")[:120]
        raise Lost(
            f"another process of this run has ended or does not answer ({reason}); the same command "
            "continues after the last checkpoint"
        ) from problem
