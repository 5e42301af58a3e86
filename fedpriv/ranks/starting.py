"""How a run gets its ranks: from `torchrun` or `srun`, which started this process as one of several, or from
`processes=4`, for which the first rank starts the others."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch._C._distributed_c10d import TCPStore

from fedpriv.device import kind_of_device
from fedpriv.errors import UserError
from fedpriv.ranks.group import ALONE, TIMEOUT, Group, Lost, Ranks
from fedpriv.ranks.launchers import meeting_point, place

_OWN = "FEDPRIV_RANK"  # "rank count port", for the processes that the first rank starts
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from fedpriv.ranks.starting import main; main()"
_ECHO = 3.0  # seconds in which torchrun passes Ctrl-C on to ranks that have had it from the terminal

current: Group | None = None  # that this process belongs to


@contextmanager
def started_outside() -> Iterator[Group]:
    """The group that a launcher has made this process one of, as long as the body runs."""
    global current
    at = place()
    assert at is not None
    os.environ.update(meeting_point())
    _own_device(at.local)
    current = Group(at.rank, at.count, at.here)
    current.echo = _ECHO
    try:
        yield current
    finally:
        _end(current)
        current = None


@contextmanager
def started_here(count: int) -> Iterator[Group]:
    """This process as the first of `count`, and the others; they end with the body."""
    global current
    from fedpriv.commands.sweeping import PARENT

    _own_device(0)
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    command = [sys.executable, "-c", _COMMAND, *sys.path]
    others = []
    for rank in range(1, count):
        told = {_OWN: f"{rank} {count} {store.port}", PARENT: str(os.getpid())}
        # In a session of its own: Ctrl-C is for the first rank, which passes it on.
        others.append(
            subprocess.Popen(command, env=os.environ | told, stdin=subprocess.DEVNULL, start_new_session=True)
        )
    try:
        current = Group(0, count, count, store)
        current.others = others
        yield current
        _end(current)
    except Lost as problem:
        ended = [n + 1 for n, other in enumerate(others) if _ended(other)]
        who = f"process {', '.join(map(str, ended))} of {count}" if ended else "another process of this run"
        raise Lost(f"{who} has ended; the same command continues after the last checkpoint") from problem
    finally:
        for other in others:  # they have nothing to write
            other.kill()
            other.wait()
        if current is not None and dist.is_initialized():
            current.leave()
        current = None


def _ended(other: "subprocess.Popen[bytes]") -> bool:
    try:
        other.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(group: Group) -> None:
    """Let the others go, if they listen; else they notice that this rank has gone."""
    if group.rank == 0 and not group.busy and dist.is_initialized():
        group.from_first(("end", ()))
    if dist.is_initialized():
        group.leave()


def _own_device(local: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())


@contextmanager
def together(cfg: DictConfig) -> Iterator[Ranks]:
    """The ranks of a run, in the first of them."""
    if current is None and cfg.processes == 1:
        yield ALONE
        return
    if current is not None and cfg.processes > 1:
        raise UserError(
            f"processes={cfg.processes}: this command was started as one of {current.count} processes "
            "already; leave processes out"
        )
    count = current.count if current else cfg.processes
    here = current.here if current else cfg.processes
    _check(cfg, count, here)
    if current is not None:
        yield current
        return
    with started_here(count) as group:
        yield group


def _check(cfg: DictConfig, count: int, here: int) -> None:
    kind = kind_of_device(cfg.device)
    if count > cfg.clients:
        raise UserError(f"clients={cfg.clients}: {count} processes are more than clients; use fewer")
    if kind == "mps":
        raise UserError("device=mps: a run over several processes needs device=cpu or cuda")
    if kind == "cuda" and 1 < torch.cuda.device_count() < here:
        raise UserError(
            f"device=cuda: {here} processes on this machine, which has {torch.cuda.device_count()} GPUs; use "
            "one process a GPU, or device=cpu"
        )


def main() -> None:
    """Of a process that the first rank has started."""
    from fedpriv.commands.sweeping import end_with_parent
    from fedpriv.ranks.following import follow

    end_with_parent()
    rank, count, port = map(int, os.environ.pop(_OWN).split())
    try:
        _own_device(rank)
        store = TCPStore("127.0.0.1", port, None, is_master=False, timeout=TIMEOUT)
        group = Group(rank, count, count, store)
    except (Lost, RuntimeError):  # the first rank is gone
        sys.exit(1)
    sys.exit(follow(group))
