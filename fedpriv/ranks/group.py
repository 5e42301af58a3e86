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
    received = 0  # bytes of tensors and lists that this rank was given by others

    def share(self, items: Sequence[T], rank: int | None = None) -> Sequence[T]:
        """The neighbouring ones of `items` that are a rank's, by default this one's."""
        at, total = self.rank if rank is None else rank, len(items)
        return items[total * at // self.count : total * (at + 1) // self.count]

    def positions(self, groups: Sequence[Rows], rank: int | None = None) -> Rows:
        """The participants in a rank's share of the groups, by default this one's."""
        return slice(None)

    def laid(self, rows: Tensor, positions: Rows, count: int) -> Tensor:
        """Rows of this rank's participants at their positions among all, [count, ...], the others void."""
        return rows

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

    def positions(self, groups: Sequence[Rows], rank: int | None = None) -> Rows:
        share = self.share(groups, rank)
        if scattered := [group for group in share if isinstance(group, Tensor)]:
            return torch.cat(scattered)
        neighbours = [group for group in share if isinstance(group, slice)]
        return slice(neighbours[0].start, neighbours[-1].stop) if neighbours else slice(0, 0)

    def laid(self, rows: Tensor, positions: Rows, count: int) -> Tensor:
        if len(rows) and not rows.stride(0):  # all the same
            return rows[:1].expand(count, *rows.shape[1:])
        whole = rows.new_empty(count, *rows.shape[1:])
        whole[positions] = rows
        return whole

    def complete(self, parts: Sequence[Rows], *tensors: Tensor) -> None:
        for tensor in tensors:
            if tensor.numel():
                self._complete(parts, tensor)

    def _complete(self, parts: Sequence[Rows], tensor: Tensor) -> None:
        numbers = torch.arange(len(tensor), device=tensor.device)
        nobody = numbers[:0]
        owned = [torch.cat([nobody, *(numbers[p] for p in self.share(parts, r))]) for r in range(self.count)]
        for some in self.pieces(tensor, max(map(len, owned))):
            places = [own[some] for own in owned]
            piece = tensor.new_zeros(max(map(len, places)), *tensor.shape[1:])
            piece[: len(places[self.rank])] = tensor[places[self.rank]]
            pieces = [torch.empty_like(piece) for _ in range(self.count)]
            with _met():
                dist.all_gather(pieces, piece)
            self.received += (self.count - 1) * piece.nbytes
            for rank, (place, made) in enumerate(zip(places, pieces, strict=True)):
                if rank != self.rank:
                    tensor[place] = made[: len(place)]

    def pieces(self, tensor: Tensor, rows: int) -> list[slice]:
        """So many rows like a tensor's, as many at once as one exchange takes."""
        if not tensor.numel():
            return []
        at_once = max(1, _PIECE * len(tensor) // tensor.nbytes)
        return [slice(n, n + at_once) for n in range(0, rows, at_once)]

    def carry(self, tensor: Tensor, leaving: Sequence[Tensor], arriving: Sequence[Tensor]) -> None:
        """Some rows of a tensor go to each rank, and the rows that each sends here come to their places."""
        sent, got = (torch.cat(list(rows)) for rows in (leaving, arriving))
        new = tensor.new_empty(len(got), *tensor.shape[1:])
        with _met():
            dist.all_to_all_single(new, tensor[sent], [*map(len, arriving)], [*map(len, leaving)])
        tensor[got] = new
        self.received += new.nbytes

    def hand(self, rows: Tensor, source: int, target: int) -> None:
        """One rank's rows to another, by way of the CPU; the rest have nothing to do with it."""
        for some in self.pieces(rows, len(rows)) if self.rank in (source, target) else []:
            with _met():
                if self.rank == source:
                    dist.send(rows[some].cpu().contiguous(), target)
                else:
                    dist.recv(new := torch.empty_like(rows[some], device="cpu"), source)
                    rows[some] = new.to(rows)
                    self.received += new.nbytes

    def from_first(self, value: T) -> T:
        if isinstance(value, Tensor):
            with _met():
                dist.broadcast(value, 0)
            self.received += value.nbytes if self.rank else 0
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
        self.received += sum(map(len, boxes)) - len(boxes[self.rank])
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
