"""Accuracy against privacy, rounds, time or traffic: a line a setting, a band over seeds, a panel a value.

Against a key of the config (epsilon, clients, lr) a point is the mean over seeds. Against `round`, `seconds`
or `uplink` a line goes through the evaluated rounds; seconds and bytes are those measured until then, their
mean over seeds. A diverged run is a cross, and part of no mean.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes

from fedpriv.errors import UserError
from fedpriv.figures.emd_accuracy import PICKS, VIEWS
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, band, facets, finish, looks, spaced_ticks
from fedpriv.studies.groups import Mean, by_value, differing, matters, mean_of, one_a_seed
from fedpriv.studies.reader import Result

OVER_ROUNDS = {
    "round": "round",
    "seconds": "seconds of training, measured",
    "uplink": "megabytes sent by all clients",
}
_COLUMN = {"seconds": ("seconds", 1.0), "uplink": ("uplink_bytes", 1e6)}
Point = tuple[float, Mean]


def draw(
    runs: Sequence[Result],
    *,
    x: str = "",
    by: Sequence[str] = (),
    facet: str = "",
    view: str = "global",
    pick: str = "last",
) -> Drawn:
    for name, value, allowed in (("view", view, VIEWS), ("pick", pick, PICKS)):
        if value not in allowed:
            raise UserError(f"{name}={value}: choose one of {', '.join(allowed)}")
    x = x or ("epsilon" if "epsilon" in differing(runs, ()) else "round")
    along = x in OVER_ROUNDS
    if not along:
        _numbers(runs, x)
    refuse_mixed("accuracy", runs, [*NAMED, *([] if along else [x]), *([facet] if facet else [])], by)
    ylabel = VIEWS[view] if along else f"{VIEWS[view]}\n{PICKS[pick]}"
    figure, panels = facets(runs, facet, OVER_ROUNDS.get(x, x), ylabel)
    lines, rows = lines_of(runs, by), []
    look = looks(lines, brief=True)
    for axes, inside in panels:
        for line, members in lines.items():
            own = [run for run in members if run in inside]
            if not own:
                continue
            sound, diverged = [r for r in own if not r.diverged], [r for r in own if r.diverged]
            points = _curve(sound, x, view) if along else _points(sound, x, f"accuracy_{view}_{pick}")
            style, level = look[line], not along and not any(matters(run, x) for run in own)
            (_level if level else _line)(axes, points, style)
            for run in diverged:
                place = _crossed(run, x, view)
                axes.plot(*place, "x", color=style["color"], markersize=8, markeredgewidth=2)
            said = {facet: own[0].values.get(facet)} if facet else {}
            rows += [
                {
                    **said,
                    **line.cells(by),
                    x: "" if level else place,
                    f"accuracy_{view}": m.mean,
                    "accuracy_std_over_seeds": m.std,
                    "seeds": m.seeds,
                    "diverged": len(diverged),
                }
                for place, m in points
            ]
        if not along:
            spaced_ticks(axes, [float(run.values[x]) for run in runs if matters(run, x)])
    if not rows:
        raise UserError("accuracy: every run diverged; lower lr")
    more = "×: diverged, in no mean" if any(run.diverged for run in runs) else ""
    return finish(Drawn(figure, rows), runs, look, more=more)


def _numbers(runs: Sequence[Result], x: str) -> None:
    values = [run.values.get(x) for run in runs if matters(run, x)]
    if not values or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        known = ", ".join(OVER_ROUNDS)
        raise UserError(f"x={x}: choose {known}, or a key of config.yaml that is a number in every run")


def _points(runs: Sequence[Result], x: str, name: str) -> list[Point]:
    def number(run: Result) -> float:
        if run.summary.get(name) is None:
            raise UserError(f"{run.folder}: no {name} in summary.json; leave this run out")
        return float(run.summary[name])

    if not any(matters(run, x) for run in runs):
        return [(0.0, mean_of([number(run) for run in one_a_seed(runs)]))] if runs else []
    groups = by_value(runs, x)
    return [(float(v), mean_of([number(run) for run in one_a_seed(g)])) for v, g in groups.items()]


def _curve(runs: Sequence[Result], x: str, view: str) -> list[Point]:
    runs = one_a_seed(runs)
    columns = [run.column(f"accuracy_{view}") for run in runs]
    places = [_until(run, x) for run in runs]
    found = []
    for round_ in sorted(set().union(*columns)):
        there = [n for n, column in enumerate(columns) if round_ in column]
        place = mean_of([places[n][round_] for n in there]).mean
        found.append((place, mean_of([columns[n][round_] for n in there])))
    return found


def _until(run: Result, x: str) -> dict[int, float]:
    """What x is after each round."""
    if x == "round":
        return {int(row["round"]): float(row["round"]) for row in run.rounds}
    name, unit = _COLUMN[x]
    numbers = [int(row["round"]) for row in run.rounds]
    sums = accumulate(float(row.get(name) or 0) / unit for row in run.rounds)
    return dict(zip(numbers, sums, strict=True))


def _crossed(run: Result, x: str, view: str) -> tuple[list[float], list[float]]:
    """Where a diverged run ended."""
    measured = run.column(f"accuracy_{view}")
    if not measured:
        return [], []
    last = max(measured)
    place = _until(run, x)[last] if x in OVER_ROUNDS else float(run.values[x])
    return [place], [measured[last]]


def _line(axes: Axes, points: Sequence[Point], style: dict[str, Any]) -> None:
    x, means = [p for p, _ in points], [m for _, m in points]
    every = max(1, len(points) // 10)
    axes.plot(x, [m.mean for m in means], markevery=every, **style)
    if points:
        band(axes, x, means, style["color"])


def _level(axes: Axes, points: Sequence[Point], style: dict[str, Any]) -> None:
    """What does not depend on x, such as runs without privacy on epsilon, is a dashed line across."""
    for _, mean in points:
        axes.axhline(mean.mean, color=style["color"], linestyle="--", label=style["label"])
        low, high = mean.mean - mean.spread, mean.mean + mean.spread
        axes.axhspan(low, high, color=style["color"], alpha=0.12, linewidth=0)
