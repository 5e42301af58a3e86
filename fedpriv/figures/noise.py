"""Accuracy against the noise on what a stage shares, and its epsilon (FedPD, Figure 2b)."""

import json
from collections.abc import Sequence
from typing import Any

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, canvas, finish, looks
from fedpriv.studies.groups import over_seeds
from fedpriv.studies.reader import Result

PICKS = {"best": "best round, picked on test data", "last": "last round"}
SHOWN = (*NAMED, "algorithm", "stage.noise", "stage.noise_std", "stage.noise_variance")
BY = ("algorithm", "stage.noise")


def draw(runs: Sequence[Result], *, pick: str = "best") -> Drawn:
    if pick not in PICKS:
        raise UserError(f"pick={pick}: choose one of {', '.join(PICKS)}")
    refuse_mixed("noise", runs, SHOWN, None)
    lines, rows = lines_of(runs, BY), []
    xlabel = "standard deviation of the noise on shared samples"
    figure, axes = canvas(xlabel, f"global accuracy\n{PICKS[pick]}")
    look = looks(lines)
    for line, members in lines.items():
        levels: dict[float, list[Result]] = {}
        for run in members:
            levels.setdefault(_release(run)["noise_std"], []).append(run)
        points = [
            (std, over_seeds(of, lambda r: float(r.summary[f"accuracy_global_{pick}"])), _release(of[0]))
            for std, of in sorted(levels.items())
        ]
        axes.errorbar(
            [p[0] for p in points],
            [p[1].mean for p in points],
            [p[1].spread for p in points] if any(p[1].std is not None for p in points) else None,
            elinewidth=0.8,
            **look[line],
        )
        for std, accuracy, release in points:
            value = release["epsilon_alone"]
            text = "ε infinite" if value is None else f"ε {value:.2g}"
            axes.annotate(text, (std, accuracy.mean), (4, 4), textcoords="offset points", fontsize=7)
            rows.append(
                {
                    **line.cells(BY),
                    "noise_std": std,
                    "epsilon_of_sharing_alone": value,
                    f"accuracy_global_{pick}": accuracy.mean,
                    "accuracy_std_over_seeds": accuracy.std,
                    "seeds": accuracy.seeds,
                }
            )
    return finish(Drawn(figure, rows), runs, look, mark="bars", more="ε: of sharing once, alone")


def _release(run: Result) -> dict[str, Any]:
    """What the run's privacy.json says of its shared set."""
    try:
        release: dict[str, Any] = json.loads((run.folder / "privacy.json").read_text())["releases"][0]
        return release
    except (OSError, KeyError, IndexError, ValueError):
        raise UserError(f"{run.folder}: shares nothing before round 0; leave it out (stage=none)") from None
