"""The run's folder: metrics.csv, clients.csv, summary.json, privacy.json, config.yaml and the pictures."""

import csv
import os
import platform
import resource
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.files import json_text, write_atomically
from fedpriv.trainer import RoundResult, Trainer

METRICS = (
    "round", "accuracy_local", "accuracy_global", "loss_local", "loss_global", "train_loss_mean", "emd_mean",
    "emd_std", "epsilon_max", "epsilon_mean", "participants", "uplink_bytes", "downlink_bytes", "seconds",
)  # fmt: skip
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


class Recorder:
    """Appends a round at a time; a continued run first drops the rounds after its checkpoint."""

    def __init__(self, folder: Path, keep_rounds: int, diagnostics: Iterable[str] = ()):
        self.folder = folder
        self.columns = (*METRICS, *diagnostics)
        self.rows = [r for r in self._read("metrics.csv") if int(r["round"]) <= keep_rounds]
        clients = [r for r in self._read("clients.csv") if int(r["round"]) <= keep_rounds]
        self._write("metrics.csv", self.columns, self.rows)
        self._write("clients.csv", CLIENTS, clients)

    def _read(self, name: str) -> list[dict[str, str]]:
        path = self.folder / name
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]  # a kill may leave half a line at the end
        return list(csv.DictReader(whole.splitlines()))

    def _write(self, name: str, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
        lines = [",".join(columns), *(",".join(r[c] for c in columns) for r in rows)]
        write_atomically(self.folder / name, ("\n".join(lines) + "\n").encode())

    def _append(self, name: str, lines: list[list[str]]) -> None:
        with open(self.folder / name, "a") as file:
            file.write("".join(",".join(cells) + "\n" for cells in lines))

    def add(self, result: RoundResult, trainer: Trainer) -> dict[str, float | None]:
        """Write one round; rounds count from 1. Returns the row as it stands in the file."""
        view, losses = result.evaluation, result.train_loss
        trained = losses[~np.isnan(losses)]  # infinite ones stay: the mean shall show divergence
        values = (
            result.number + 1,
            view and view.accuracy_local,
            view and view.accuracy_whole,
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
            *result.diagnostics.values(),
        )
        row = dict(zip(self.columns, map(_text, values), strict=True))
        self.rows.append(row)
        self._append("metrics.csv", [list(row.values())])
        joined = np.isin(np.arange(trainer.setting.clients), result.clients)
        own_accuracy = view.accuracy_of_clients if view else np.full(len(joined), np.nan)
        own_loss = view.loss_of_clients if view else np.full(len(joined), np.nan)
        columns = zip(
            joined.astype(int), trainer.setting.samples, losses, own_accuracy, own_loss, result.epsilon,
            trainer.setting.budgets, strict=True,
        )  # fmt: skip
        self._append(
            "clients.csv",
            [[str(result.number + 1), str(k), *map(_text, cells)] for k, cells in enumerate(columns)],
        )
        return {name: _value(text) for name, text in row.items()}

    def sync(self) -> None:
        """Make sure the rows are on the disk before a checkpoint says they are."""
        for name in ("metrics.csv", "clients.csv"):
            with open(self.folder / name, "rb") as file:
                os.fsync(file.fileno())

    def column(self, name: str) -> list[float]:
        """A metric over the rounds where it was measured."""
        return [float(r[name]) for r in self.rows if r[name]]

    def summary(self, trainer: Trainer, target: float | None = None, **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"rounds": len(self.rows), **reached(self.rows, target)}
        for view in ("local", "global"):
            values = self.column(f"accuracy_{view}")
            result[f"accuracy_{view}_best"] = max(values, default=None)
            result[f"accuracy_{view}_last"] = values[-1] if values else None
            result[f"accuracy_{view}_mean_last10"] = float(np.mean(values[-10:])) if values else None
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
    here = Path(__file__)
    commands = (
        [
            "git",
            "ls-files",
            "--error-unmatch",
            here.name,
        ],  # an installed copy inside somebody's checkout fails
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
