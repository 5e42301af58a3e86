"""Finished runs as one table: a row a setting, with what differs between them; seeds are averaged.

python scripts/table.py FOLDER ... > table.csv
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from fedpriv.figures.lines import differing, text
from fedpriv.figures.results import Result, find


def write(runs: Sequence[Result], file: TextIO) -> None:
    """Accuracy on the whole test set, the stated and the provable epsilon, and the cost."""
    keys = list(differing(runs, []))
    settings: dict[tuple[str, ...], list[Result]] = {}
    for run in runs:
        cells = tuple(text(run.values[k]) if k in run.values else "" for k in keys)
        settings.setdefault(cells, []).append(run)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [*keys, "seeds", "accuracy", "accuracy_std", "stated", "provable", "uplink_mb", "seconds"]
    )
    for cells, same in sorted(settings.items()):
        accuracy = [run.summary["accuracy_global_last"] for run in same]
        spread = np.std(accuracy, ddof=1) if len(same) > 1 else 0.0
        epsilons = [_largest(same, f"epsilon_{kind}") for kind in ("spent", "provable")]
        means = [float(np.mean([run.summary[k] for run in same])) for k in ("uplink_bytes", "seconds")]
        numbers = [f"{np.mean(accuracy):.4f}", f"{spread:.4f}", *epsilons]
        writer.writerow([*cells, len(same), *numbers, f"{means[0] / 1e6:.1f}", f"{means[1]:.1f}"])


def _largest(runs: Sequence[Result], key: str) -> str:
    """Nothing where a run has none."""
    values = [run.summary[key] for run in runs]
    return "" if None in values else f"{max(values):.4g}"


if __name__ == "__main__":
    write(find([Path(folder) for folder in sys.argv[1:]])[0], sys.stdout)
