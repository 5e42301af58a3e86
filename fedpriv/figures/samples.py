"""What transforms make of a sample (PrivateFL, Figure 10): a row a dataset, a column a transform.

Shown is the first client's sample at the last round that each run's samples.npz holds, each image on its
own scale. Like that file it shows raw training samples and is not private.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpriv.errors import UserError
from fedpriv.figures.grid import grid
from fedpriv.figures.lines import refuse_mixed
from fedpriv.figures.results import Result
from fedpriv.figures.style import Drawn


def draw(runs: Sequence[Result]) -> Drawn:
    runs = [run for run in runs if (run.folder / "samples.npz").exists()]
    if not runs:
        raise UserError("samples: no run there has a samples.npz; `fedpriv run samples_at=[..]` makes one")
    cells: dict[tuple[str, str], Any] = {}  # (dataset, transform) -> samples.npz
    for run in runs:
        place = (run.values["dataset"], run.values["transform"])
        if place in cells:
            raise UserError(f"samples: several runs of {', '.join(place)}, and images have no mean; give one")
        cells[place] = np.load(run.folder / "samples.npz")
    datasets = sorted({d for d, _ in cells})
    transforms = sorted({t for _, t in cells}, key=lambda t: (t != "linear", t))
    images, rows = [], []
    for dataset in datasets:
        _check_row(dataset, [r for r in runs if r.values["dataset"] == dataset], cells)
        row = {t: cells[dataset, t] for t in transforms if (dataset, t) in cells}
        first = next(iter(row.values()))
        images.append(
            [first["original"][0], *(row[t]["transformed"][-1, 0] if t in row else None for t in transforms)]
        )
        rows += _pixels(dataset, "original", first, first["original"][0])
        for transform, kept in row.items():
            rows += _pixels(dataset, transform, kept, kept["transformed"][-1, 0])
    figure = grid(
        images,
        rows=[
            f"{d}\nround {next(k for (o, _), k in cells.items() if o == d)['rounds'][-1]}" for d in datasets
        ],
        columns=["original", *transforms],
        title="A training sample through its client's transform, each image on its own scale",
        shared=False,
    )
    return Drawn(figure, rows)


def _check_row(dataset: str, runs: Sequence[Result], cells: dict[tuple[str, str], Any]) -> None:
    """The images of a row must differ by the transform alone."""
    refuse_mixed(f"samples of {dataset}", runs, ["transform"], None)
    own = [kept for (of, _), kept in cells.items() if of == dataset]
    if any(not np.array_equal(kept["original"][0], own[0]["original"][0]) for kept in own):
        raise UserError(f"samples of {dataset}: the runs show different samples; give runs of one seed")
    if len(rounds := sorted({int(kept["rounds"][-1]) for kept in own})) > 1:
        raise UserError(
            f"samples of {dataset}: last kept after rounds {rounds}; give runs with one samples_at"
        )


def _pixels(dataset: str, transform: str, kept: Any, image: np.ndarray) -> list[dict[str, Any]]:
    """A row a pixel."""
    fixed = {"dataset": dataset, "transform": transform, "round": kept["rounds"][-1]}
    fixed |= {"client": kept["clients"][0], "label": kept["labels"][0]}
    return [
        {**fixed, "channel": c, "row": r, "column": k, "value": float(v)}
        for (c, r, k), v in np.ndenumerate(image)
    ]
