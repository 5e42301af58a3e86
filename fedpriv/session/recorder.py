"""The run's folder: metrics.csv, clients.csv, summary.json, privacy.json, config.yaml and the pictures."""

import csv
import platform
import resource
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedpriv
from fedpriv.errors import UserError
from fedpriv.files import json_text, write_atomically
from fedpriv.session.growing import Growing
from fedpriv.session.screen import errors

if TYPE_CHECKING:
    from fedpriv.rounds.trainer import RoundResult, Trainer

METRICS = (
    "round", "accuracy_local", "accuracy_global", "loss_local", "loss_global", "train_loss_mean", "emd_mean",
    "emd_std", "epsilon_max", "epsilon_mean", "participants", "uplink_bytes", "downlink_bytes", "seconds",
)  # fmt: skip
VALIDATION = ("accuracy_local_validation", "accuracy_global_validation")  # where samples are held out
CLIENTS = (
    "round", "client", "participated", "samples", "train_loss", "accuracy_local", "loss_local",
    "epsilon_spent", "epsilon_budget",
)  # fmt: skip
PACKAGES = (
    "fedpriv",
    "torch",
    "torchvision",
    "opacus",
    "dp-accounting",
    "hydra-core",
    "numpy",
    "scikit-learn",
)


def _text(value: Any) -> str:
    """A cell: six significant digits, nothing for what was not measured, inf for no bound or divergence."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _shown(loss: float) -> float:
    """A loss that is not a number has diverged."""
    return float("inf") if np.isnan(loss) else loss


def _value(text: str) -> float | None:
    return float(text) if text else None


def reached(rows: Iterable[dict[str, str]], target: float | None) -> dict[str, Any]:
    """The first round whose accuracy on the whole test set is the target or better; null: none was."""
    if target is None:
        return {}
    enough = (int(r["round"]) for r in rows if r["accuracy_global"] and float(r["accuracy_global"]) >= target)
    return {"target": target, "rounds_to_target": next(enough, None)}


def _texts(values: np.ndarray) -> list[str]:
    """The cells of a column, as `_text` would spell them; what many clients share is spelled once."""
    found, where = np.unique(values, return_inverse=True)
    words = ("%.6g " * len(found) % tuple(found.tolist())).split()
    words = ["" if word == "nan" else word for word in words]
    return [words[n] for n in where.tolist()]


def _line(cells: Iterable[str]) -> bytes:
    return (",".join(cells) + "\n").encode()


def read_rounds(path: Path, rounds: int) -> list[dict[str, str]]:
    """metrics.csv of a finished run: every round once and in order, or one line says that it is not so."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        whole = [r["round"] for r in rows] == [str(n + 1) for n in range(rounds)]
    except (OSError, KeyError, ValueError, csv.Error):
        whole = False
    if not whole:
        raise UserError(
            f"{path}: does not hold rounds 1 to {rounds} once each, so somebody changed it; put it back, "
            "or use resume=false to run again"
        )
    return rows


class Recorder:
    """Appends a round at a time; `before` is its own state in the checkpoint from which the run continues.

    metrics.csv is in the checkpoint and is made from there. clients.csv is too large for that: the checkpoint
    has its length and checksum, what follows is dropped, and a file that does not fit is refused.
    """

    def __init__(self, folder: Path, trainer: "Trainer", before: dict[str, Any] | None = None):
        self.folder = folder
        self._holds_out = trainer.validation is not None
        held_out = VALIDATION if self._holds_out else ()
        self.columns = (*METRICS, *held_out, *trainer.diagnostics())
        self.rows: list[dict[str, str]] = []
        self._samples, self._budgets = trainer.setting.sizes, trainer.setting.budgets  # [K]
        self._spent = trainer.ledger.claimed()  # [K] epsilon after the last row
        metrics, clients = folder / "metrics.csv", folder / "clients.csv"
        if before is None:
            self._metrics = Growing(metrics, _line(self.columns))
            self._clients = Growing(clients, _line(CLIENTS))
            return
        self._clients = Growing.going_on(clients, before["clients"]["bytes"], before["clients"]["sha256"])
        text = before["metrics"].encode()
        self.rows = list(csv.DictReader(before["metrics"].splitlines()))
        if not metrics.exists() or not metrics.read_bytes().startswith(text):
            errors.print(
                f"warning: {metrics} was changed and is made again from the checkpoint", soft_wrap=True
            )
        self._metrics = Growing(metrics, text)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; what it speaks of is on the disk first."""
        self._metrics.sync()
        self._clients.sync()
        lines = (self.columns, *(r.values() for r in self.rows))
        return {
            "metrics": b"".join(map(_line, lines)).decode(),
            "clients": {"bytes": self._clients.length, "sha256": self._clients.digest},
        }

    def close(self) -> None:
        self._metrics.close()
        self._clients.close()

    def add(self, result: "RoundResult") -> dict[str, float | None]:
        """Write one round; rounds count from 1. Returns the row as it stands in the file."""
        view, held, losses = result.evaluation, result.validation, result.train_loss
        trained = losses[~np.isnan(losses)]  # infinite ones stay: the mean shall show divergence
        values = (
            result.number + 1,
            view and view.accuracy_local,
            view and view.accuracy_global,
            view and _shown(view.loss_local),
            view and _shown(view.loss_whole),
            float(trained.mean()) if len(trained) else None,
            *result.emd,
            float(result.epsilon.max()),
            float(result.epsilon.mean()),
            len(result.clients),
            result.uplink,
            result.downlink,
            result.seconds,
            *((held and held.accuracy_local, held and held.accuracy_global) if self._holds_out else ()),
            *result.diagnostics.values(),
        )
        row = dict(zip(self.columns, map(_text, values), strict=True))
        self.rows.append(row)
        self._metrics.add(_line(row.values()))
        self._clients.add(self._of_clients(result).encode())
        return {name: _value(text) for name, text in row.items()}

    def _of_clients(self, result: "RoundResult") -> str:
        """The rows of those with something new: who took part, was evaluated or has spent more."""
        joined = np.zeros(len(self._spent), dtype=bool)
        joined[result.clients] = True
        view = result.evaluation
        new = np.flatnonzero(joined | (result.epsilon != self._spent) | (view is not None))
        self._spent = result.epsilon
        blank = np.full(len(joined), np.nan)
        cells = zip(
            new.tolist(),
            joined[new].astype(int).tolist(),
            self._samples[new].tolist(),
            _texts(result.train_loss[new]),
            _texts((view.accuracy_of_clients if view else blank)[new]),
            _texts((view.loss_of_clients if view else blank)[new]),
            _texts(result.epsilon[new]),
            _texts(self._budgets[new]),
            strict=True,
        )
        start = f"{result.number + 1},"
        return "".join(start + f"{k},{p},{n},{t},{a},{v},{e},{b}\n" for k, p, n, t, a, v, e, b in cells)

    def column(self, name: str) -> list[float]:
        """A metric over the rounds where it was measured."""
        return [float(r[name]) for r in self.rows if r[name]]

    def summary(self, trainer: "Trainer", target: float | None = None, **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"rounds": len(self.rows), **reached(self.rows, target)}
        for view in ("local", "global"):
            values = self.column(f"accuracy_{view}")
            result[f"accuracy_{view}_best"] = max(values, default=None)
            result[f"accuracy_{view}_last"] = values[-1] if values else None
            result[f"accuracy_{view}_mean_last10"] = float(np.mean(values[-10:])) if values else None
        for name in VALIDATION if self._holds_out else ():
            result[name] = next(iter(reversed(self.column(name))), None)
        provable = float(trainer.ledger.provable().max())
        spent = float(trainer.ledger.claimed().max())
        result |= {
            "best_is": "the best round on test data: optimistic, as the papers report it; last is not",
            "epsilon_spent": spent if np.isfinite(spent) else None,
            "epsilon_provable": provable if np.isfinite(provable) else None,
            "emd": next(iter(reversed(self.column("emd_mean"))), None),
            "uplink_bytes": int(sum(self.column("uplink_bytes"))),
            "downlink_bytes": int(sum(self.column("downlink_bytes"))),
            "seconds": round(sum(self.column("seconds")), 3),
            "peak_memory_mb": round(_peak_memory()),
            "git_revision": git_revision(),
            "versions": {p: version(p) for p in PACKAGES} | {"python": platform.python_version()},
            **more,
        }
        return result

    def json(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.folder / name, json_text(content).encode())


def _peak_memory() -> float:
    """The most memory this process has held, in MB."""
    unit = 1 if platform.system() == "Darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def git_revision() -> str | None:
    """The commit this code was run from, with a mark if it was changed since; None outside a checkout."""
    here = Path(fedpriv.__file__)
    commands = (
        ["git", "ls-files", "--error-unmatch", here.name],  # a copy installed in somebody's checkout fails
        ["git", "rev-parse", "HEAD"],
        ["git", "status", "--porcelain", "--", "."],
    )
    try:
        _, revision, changes = (
            subprocess.run(c, cwd=here.parent, capture_output=True, text=True, check=True).stdout.strip()
            for c in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return revision + ("-changed" if changes else "")
