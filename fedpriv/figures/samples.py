"""What transforms make of a sample (PrivateFL, Figure 10): a row a dataset, a column a transform.

Shown is the first client's sample at the last round that each run's samples.npz holds, each image on its
own scale; of several seeds the smallest, for images have no mean. Like that file the figure shows raw
training samples and is not private.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.errors import UserError
from fedpriv.figures.grid import grid
from fedpriv.figures.lines import refuse_mixed
from fedpriv.figures.style import Drawn
from fedpriv.studies.reader import Result


def draw(runs: Sequence[Result]) -> Drawn:
    runs = [run for run in runs if (run.folder / "samples.npz").exists()]
    if not runs:
        raise UserError("samples: no run there has a samples.npz; `fedpriv run samples_at=[..]` makes one")
    datasets = sorted({run.values["dataset"] for run in runs})
    transforms = sorted({run.values["transform"] for run in runs}, key=lambda t: (t != "linear", t))
    images, names, rows = [], [], []
    for dataset in datasets:
        seed, row = _row(dataset, [run for run in runs if run.values["dataset"] == dataset])
        shown = {t: kept["transformed"][-1, 0] for t, kept in row.items()}
        first = next(iter(row.values()))
        shown["original"] = first["original"][0]
        images.append([shown.get(t) for t in ("original", *transforms)])
        names.append(f"{dataset}\nround {first['rounds'][-1]}\nseed {seed}")
        for transform, image in shown.items():
            rows += _pixels(dataset, transform, first, image)
    figure = grid(
        images,
        rows=names,
        columns=["original", *transforms],
        title="A training sample through its client's transform, each image on its own scale",
        shared=False,
    )
    return Drawn(figure, rows)


def _row(dataset: str, runs: Sequence[Result]) -> tuple[int, dict[str, Any]]:
    """The smallest seed, and its samples.npz by transform; they must differ by the transform alone."""
    refuse_mixed(f"samples of {dataset}", runs, ["transform"], None)
    seed = min(run.values["seed"] for run in runs)
    of_seed = [run for run in runs if run.values["seed"] == seed]
    row = {run.values["transform"]: _kept(run.folder / "samples.npz") for run in of_seed}
    if absent := {run.values["transform"] for run in runs} - row.keys():
        raise UserError(f"samples of {dataset}: no {min(absent)} with seed {seed}; give runs of one seed")
    if len(rounds := sorted({int(kept["rounds"][-1]) for kept in row.values()})) > 1:
        raise UserError(
            f"samples of {dataset}: last kept after rounds {rounds}; give runs with one samples_at"
        )
    return seed, row


def _kept(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {
                name: content[name] for name in ("transformed", "original", "rounds", "clients", "labels")
            }
    except Exception as problem:  # whatever a damaged archive makes its reader raise
        raise UserError(f"{path}: cannot be read ({type(problem).__name__}); leave that run out") from problem


def _pixels(dataset: str, transform: str, kept: Any, image: np.ndarray) -> list[dict[str, Any]]:
    """A row a pixel."""
    fixed = {"dataset": dataset, "transform": transform, "round": kept["rounds"][-1]}
    fixed |= {"client": kept["clients"][0], "label": kept["labels"][0]}
    return [
        {**fixed, "channel": c, "row": r, "column": k, "value": float(v)}
        for (c, r, k), v in np.ndenumerate(image)
    ]
