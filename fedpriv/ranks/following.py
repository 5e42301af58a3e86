"""What every rank but the first does: whatever the first one says. It writes nothing and shows nothing."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from fedpriv.errors import UserError
from fedpriv.ranks.group import Group, Lost, Ranks

if TYPE_CHECKING:
    from fedpriv.building import Run


def assembled(cfg: DictConfig, key: bytes | None, ranks: Ranks) -> "Run":
    """The run as every rank has it; `key`: what the noise comes from where the config does not say."""
    from fedpriv.building import build

    run = ranks.alike(lambda: build(cfg, secret=lambda: key or b"", prepare=False, ranks=ranks))
    if len(set(ranks.all_of(run.data.fingerprint))) > 1:
        raise UserError("data_dir: the data are not the same for all processes; give all the same files")
    return run


def follow(ranks: Group) -> int:
    """Until the first rank ends; the exit code."""
    from fedpriv.session import screen

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank passes it on, after the round
    screen.silence(True)
    warnings.simplefilter("ignore")
    run: Run | None = None
    try:
        while True:
            task, content = ranks.hear()
            if task == "end":
                ranks.leave()
                return 0
            run = _done(task, content, run, ranks)
    except Lost:
        return 1
    except Exception as error:
        if os.environ.get("FEDPRIV_TRACEBACK"):
            raise
        print(f"rank {ranks.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _done(task: str, content: tuple[Any, ...], run: "Run | None", ranks: Group) -> "Run | None":
    if task == "build":
        try:
            cfg, key = content
            return assembled(cfg, key, ranks)
        except Lost:
            raise
        except Exception:  # all have heard of it, and the first rank says it
            return None
    assert run is not None
    tasks: dict[str, Callable[..., object]] = {
        "prepare": run.prepare,
        "load": run.trainer.load,
        "round": run.trainer.round,
        "whole": run.trainer.store.whole,
        "fetch": run.trainer.store.fetch,
    }
    tasks[task](*content)
    return run
