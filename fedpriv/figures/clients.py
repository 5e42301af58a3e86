"""Who pays for privacy: the accuracies of single clients, by their budget, their size or their main class.

Each client counts with its accuracy on its own test split when it was last evaluated (clients.csv); clients
of all seeds stand together. The box goes from quarter to quarter with the median in it, the whiskers to the
last clients.
"""

import csv
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, facets, finish, looks
from fedpriv.studies.groups import one_a_seed
from fedpriv.studies.reader import Result

GROUPS = {"budget": "epsilon budget of the client", "size": "training samples of the client",
          "class": "most frequent class of the client", "none": ""}  # fmt: skip
_FEW = 6  # values that get a group each; more are divided
_WIDE = 20  # times the smallest value: from there on groups are cut on a logarithmic scale


class Client(NamedTuple):
    accuracy: float
    budget: float
    size: float
    main: float  # its most frequent class


def draw(runs: Sequence[Result], *, group: str = "", by: Sequence[str] = (), facet: str = "") -> Drawn:
    refuse_mixed("clients", runs, [*NAMED, *([facet] if facet else [])], by)
    people = {run.folder: _clients(run) for run in runs}
    everybody = [client for own in people.values() for client in own]
    group = group or _default(everybody)
    if group not in GROUPS:
        raise UserError(f"group={group}: choose one of {', '.join(GROUPS)}")
    edges = _edges([_number(client, group) for client in everybody], group)
    figure, panels = facets(runs, facet, GROUPS[group], "accuracy of a client (own network, own test split)")
    lines, rows = lines_of(runs, by), []
    look = looks(lines, brief=True)
    for axes, inside in panels:
        axes.set_ylim(-0.03, 1.03)
        present = [c for run in inside for c in people[run.folder]]
        counts = [sum(low <= _number(c, group) <= high for c in present) for _, low, high in edges]
        names = [
            f"{edge[0]}\nn={n}" if len(edges) <= _FEW else edge[0]
            for edge, n in zip(edges, counts, strict=True)
        ]
        axes.set_xticks(range(len(edges)), names, fontsize=9)
        there = {line: own for line, members in lines.items() if (own := [r for r in members if r in inside])}
        for number, (line, members) in enumerate(there.items()):
            own = one_a_seed(members)
            style = look[line]
            for place, (name, low, high) in enumerate(edges):
                found = [c for run in own for c in people[run.folder] if low <= _number(c, group) <= high]
                if not found:
                    continue
                values = np.array([client.accuracy for client in found])
                wide = 0.8 / len(there)
                middle = place + (number - (len(there) - 1) / 2) * wide
                _box(axes, values, middle, wide, style["color"])
                said: dict[str, Any] = {facet: own[0].values.get(facet)} if facet else {}
                quarters = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
                columns = ("least", "quarter", "median", "three_quarters", "most")
                said |= {**line.cells(by), group: name, "clients": len(values), "mean": float(values.mean())}
                rows.append({**said, **dict(zip(columns, quarters, strict=True)), "seeds": len(own)})
            axes.plot([], [], color=style["color"], marker="s", linestyle="none", label=style["label"])
    seeds = max(row["seeds"] for row in rows)
    about = f"clients of {seeds} seed{'s' * (seeds > 1)} together (n); box: half of them, line: median"
    return finish(Drawn(figure, rows), runs, look, about=about)


def _box(axes: Any, values: np.ndarray, middle: float, wide: float, colour: str) -> None:
    axes.boxplot(
        values,
        positions=[middle],
        widths=0.8 * wide,
        whis=(0, 100),
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": colour, "alpha": 0.3, "edgecolor": colour},
        medianprops={"color": colour, "linewidth": 2},
        whiskerprops={"color": colour},
        capprops={"color": colour},
    )
    if len(values) <= 200:  # side by side in a fixed pattern, so that equal ones are seen
        shift = 0.25 * wide * np.linspace(-1, 1, len(values))
        axes.plot(middle + shift, values, ".", color=colour, markersize=3, alpha=0.6)


def _number(client: Client, group: str) -> float:
    numbers = {"budget": client.budget, "size": client.size, "class": client.main}
    return numbers.get(group, 0.0)


def _default(everybody: Sequence[Client]) -> str:
    for group in ("budget", "size"):
        if len({_number(client, group) for client in everybody}) > 1:
            return group
    return "none"


def _edges(values: Sequence[float], group: str) -> list[tuple[str, float, float]]:
    """(name, least, most) of every group: single values, or quarters of the clients; where the largest is
    many times the smallest, quarters of the logarithmic scale that are not empty."""
    if group == "none":
        return [("all clients", 0.0, 0.0)]
    different = sorted(set(values))
    if len(different) <= _FEW or group == "class":
        return [(f"{value:.3g}", value, value) for value in different]
    low, high = different[0], different[-1]
    if low > 0 and high / low > _WIDE and high < np.inf:
        cuts = np.geomspace(low, high, 5)[1:]
    else:
        cuts = np.quantile(values, [0.25, 0.5, 0.75, 1], method="lower")
    found: list[tuple[str, float, float]] = []
    for cut in [*cuts[:-1], high]:
        inside = [v for v in different if v <= cut and (not found or v > found[-1][2])]
        if inside:
            name = f"{inside[0]:.3g} to {inside[-1]:.3g}" if len(inside) > 1 else f"{inside[0]:.3g}"
            found.append((name, inside[0], inside[-1]))
    return found


def _clients(run: Result) -> list[Client]:
    """Every client of a run as it was last evaluated."""
    try:
        with open(run.folder / "partition.csv", newline="") as file:
            counts = [row for row in csv.DictReader(file) if row["side"] == "train"]
        main = {int(row["client"]): _main(row) for row in counts}
        last: dict[int, Client] = {}
        with open(run.folder / "clients.csv", newline="") as file:
            for row in csv.DictReader(file):
                if row["accuracy_local"]:
                    accuracy, budget = float(row["accuracy_local"]), float(row["epsilon_budget"] or "inf")
                    who = int(row["client"])
                    last[who] = Client(accuracy, budget, float(row["samples"]), main[who])
    except (OSError, KeyError, ValueError, csv.Error) as problem:
        raise UserError(
            f"{run.folder}: clients.csv and partition.csv cannot be read ({type(problem).__name__}); leave "
            "this run out"
        ) from problem
    if not last:
        raise UserError(f"{run.folder}: no client was evaluated; leave it out")
    return list(last.values())


def _main(row: dict[str, str]) -> float:
    counts = {float(k.removeprefix("class_")): int(v) for k, v in row.items() if k.startswith("class_")}
    return max(counts, key=lambda c: counts[c])
