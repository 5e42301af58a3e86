"""Best accuracy, rounds to a target and speed-up of algorithms with and without a stage (FedPD, Table 1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.errors import UserError
from fedpriv.figures.lines import refuse_mixed
from fedpriv.figures.style import COLOURS, Drawn
from fedpriv.studies.groups import mean_of, one_a_seed, over_seeds
from fedpriv.studies.reader import Result

VIEWS = ("global", "local")
BASE = ("fedavg", "none")  # what a target and a speed-up are measured by
_HATCHES = ("", "//", "..", "xx")


def draw(runs: Sequence[Result], *, target: str = "", view: str = "global") -> Drawn:
    """The target is an accuracy; else each seed's best of FedAvg without a stage, as in FedPD."""
    if view not in VIEWS:
        raise UserError(f"view={view}: choose one of {', '.join(VIEWS)}")
    refuse_mixed("target", runs, ["algorithm", "stage"], None)
    groups: dict[tuple[str, str], list[Result]] = {}
    for run in sorted(runs, key=lambda r: (r.values["algorithm"] != "fedavg", r.values["algorithm"])):
        groups.setdefault((run.values["algorithm"], run.values["stage"]), []).append(run)
    groups = {pair: one_a_seed(members) for pair, members in groups.items()}
    targets = _targets(groups, target, view)
    taken = {pair: [_rounds(r, targets, view) for r in members] for pair, members in groups.items()}
    rows = [_row(pair, members, groups, taken, targets, view) for pair, members in groups.items()]
    return Drawn(_figure(rows, view), rows)


def _best(run: Result, view: str) -> float:
    return max(run.column(f"accuracy_{view}").values(), default=float("nan"))


def _targets(groups: Mapping[tuple[str, str], Sequence[Result]], target: str, view: str) -> dict[int, float]:
    """The target of every seed."""
    seeds = {run.values["seed"] for members in groups.values() for run in members}
    if target:
        try:
            value = float(target)
        except ValueError:
            raise UserError(f"target={target}: must be an accuracy between 0 and 1") from None
        if not 0 < value <= 1:
            raise UserError(f"target={target}: must be an accuracy between 0 and 1")
        return dict.fromkeys(seeds, value)
    found = {run.values["seed"]: _best(run, view) for run in groups.get(BASE, ())}
    if missing := sorted(seeds - found.keys()):
        raise UserError(
            f"target: no run with algorithm=fedavg stage=none and seed={missing[0]}, whose best accuracy "
            "would be the target; add it or give target=0.8"
        )
    return found


def _rounds(run: Result, targets: Mapping[int, float], view: str) -> int | None:
    goal = targets[run.values["seed"]]
    return next((r for r, a in sorted(run.column(f"accuracy_{view}").items()) if a >= goal), None)


def _mean_rounds(taken: Sequence[int | None]) -> float | None:
    """None as soon as one seed did not get there: a mean over the others would flatter."""
    arrived = [t for t in taken if t is not None]
    return float(np.mean(arrived)) if len(arrived) == len(taken) else None


def _row(
    pair: tuple[str, str],
    members: Sequence[Result],
    groups: Mapping[tuple[str, str], Sequence[Result]],
    taken: Mapping[tuple[str, str], Sequence[int | None]],
    targets: Mapping[int, float],
    view: str,
) -> dict[str, Any]:
    best = over_seeds(members, lambda r: _best(r, view))
    plain = groups.get((pair[0], "none"))
    rounds = _mean_rounds(taken[pair])
    base = _mean_rounds(taken[BASE]) if BASE in taken else None
    return {
        "algorithm": pair[0],
        "stage": pair[1],
        f"accuracy_{view}_best": best.mean,
        "accuracy_std_over_seeds": best.std,
        "gain": best.mean - over_seeds(plain, lambda r: _best(r, view)).mean if plain else None,
        "target": mean_of([targets[r.values["seed"]] for r in members]).mean,
        "rounds_to_target": rounds,
        "seeds_that_reached_it": sum(t is not None for t in taken[pair]),
        "speed_up": base / rounds if base and rounds else None,
        "seeds": best.seeds,
    }


def _figure(rows: Sequence[dict[str, Any]], view: str) -> Figure:
    algorithms, stages = (list(dict.fromkeys(r[k] for r in rows)) for k in ("algorithm", "stage"))
    figure = Figure(figsize=(8.4, 3.8), layout="constrained", dpi=200)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for row in rows:
        number = stages.index(row["stage"])
        place = algorithms.index(row["algorithm"]) + (number - (len(stages) - 1) / 2) * 0.8 / len(stages)
        look = {"width": 0.72 / len(stages), "color": COLOURS[number], "hatch": _HATCHES[number % 4]}
        look |= {"edgecolor": "white", "linewidth": 0.4}
        best, rounds = row[f"accuracy_{view}_best"], row["rounds_to_target"]
        left.bar(place, best, yerr=row["accuracy_std_over_seeds"], **look)
        left.annotate(f"{best:.3f}", (place, best), ha="center", va="bottom", fontsize=7)
        right.bar(place, rounds or 0, **look)
        speed = f"{rounds:g}" if rounds else "not\nreached"
        speed += f"\n×{row['speed_up']:.1f}" if row["speed_up"] else ""
        right.annotate(speed, (place, rounds or 0), ha="center", va="bottom", fontsize=7)
    goal = np.mean([r["target"] for r in rows])
    left.axhline(goal, color="0.4", linewidth=0.8, linestyle="--")
    left.set(ylabel=f"{view} accuracy, best round (picked on test data)", ylim=(0, 1.08))
    right.set(ylabel=f"rounds to accuracy {goal:.3g} (×: speed-up over FedAvg)")
    right.margins(y=0.18)
    for axes in (left, right):
        axes.set_xticks(range(len(algorithms)), algorithms, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [
        left.bar(0, 0, color=COLOURS[n], hatch=_HATCHES[n % 4], edgecolor="white", label=_stage(s))
        for n, s in enumerate(stages)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(stages), fontsize=8, frameon=False)
    return figure


def _stage(name: str) -> str:
    return "no stage" if name == "none" else f"stage={name}"
