"""A published figure of a recipe's runs: a panel a setting, a line a method, the paper's numbers marked.

`figure` of the recipe: {x: axis or "round", line: axis, panel: [axis, ...], y: a number of ours}.
"""

import io
import itertools
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.figures.style import COLOURS, MARKERS, band
from fedpriv.reproduce.compare import Comparison, Key
from fedpriv.studies.groups import Mean, mean_of

_WIDE = 3  # panels side by side
_NARROWEST = 6.0  # inches
_FEW = 4  # budgets that are written out in a legend
_CLOSE = 0.05  # of a panel's height: what is nearer shares a label
_LETTER = 0.085  # inches of a letter in the legend, generously


def png(comparison: Comparison) -> bytes | None:
    """The figure as a picture, or None as `draw`."""
    figure = draw(comparison)
    if figure is None:
        return None
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, metadata={"Software": None})
    return data.getvalue()


def draw(comparison: Comparison) -> Figure | None:
    """The figure, or None where the recipe has none or nothing was run."""
    wanted = comparison.recipe.figure
    if not wanted or not comparison.cells:
        return None
    apart = wanted.get("panel", ())
    panels = list(dict.fromkeys(_part(comparison, key, apart) for key in comparison.cells))
    columns = min(_WIDE, len(panels))
    rows = -(-len(panels) // columns)
    wide = max(_NARROWEST, 4.2 * columns)
    figure = Figure(figsize=(wide, 3.3 * rows + 0.5), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    by = [wanted["line"]] if isinstance(wanted.get("line"), str) else wanted.get("line", [])
    every = comparison.keys()
    lines = list(dict.fromkeys(_part(comparison, key, by) for key in every))
    y, values = wanted.get("y", "accuracy"), comparison.recipe.values
    name = values.get(y, "accuracy_global_last" if y == "accuracy" else y)
    label = "accuracy on the whole test set" if wanted["x"] == "round" else name.replace("_", " ")
    for panel, one in zip(panels, grid.flat, strict=False):
        inside = [k for k in comparison.cells if _part(comparison, k, apart) == panel]
        for number, line in enumerate(lines):
            own = [k for k in inside if _part(comparison, k, by) == line]
            if wanted["x"] == "round":
                points = _over_rounds(comparison, own)
            else:
                points = _over_axis(comparison, own, wanted["x"], name)
            named = ", ".join(map(_short, line))
            if finite := [p for p in points if isinstance(p[0], str) or math.isfinite(p[0])]:
                _line(one, finite, number, named)
            for _, level in points[len(finite) :]:  # without a budget: a level, not a point
                one.axhline(level.mean, color=COLOURS[number % len(COLOURS)], linestyle="--", linewidth=1)
        _quoted(one, comparison, inside, name)
        one.set_title(", ".join(f"{a} {_short(v)}" for a, v in zip(apart, panel, strict=True)), fontsize=9)
        one.set_xlabel(str(wanted["x"]).replace("_", " "), fontsize=8)
        one.grid(alpha=0.25, linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    for empty in grid.flat[len(panels) :]:
        empty.set_visible(False)
    for first in grid[:, 0]:
        first.set_ylabel(label, fontsize=8)
    figure.suptitle(f"{comparison.recipe.name}: {comparison.recipe.title}", fontsize=10)
    handles: dict[str, Any] = {}
    for one in grid.flat:
        handles |= dict(zip(*reversed(one.get_legend_handles_labels()), strict=True))
    longest = max(map(len, handles), default=1)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, int(wide / (_LETTER * longest + 0.6))),
        fontsize=8,
        frameon=False,
    )
    return figure


def _short(text: str) -> str:
    """A long list of budgets by how often each stands in it: 5,5,5,15,15 is 3 of 5, 2 of 15."""
    runs = [(value, len(list(group))) for value, group in itertools.groupby(text.split(","))]
    if sum(count for _, count in runs) <= _FEW:
        return text
    return ", ".join(f"{count}×{value}" for value, count in runs)


def _part(comparison: Comparison, key: Key, names: Any) -> Key:
    axes = list(comparison.recipe.axes)
    return tuple(key[axes.index(n)] for n in names)


def _over_axis(comparison: Comparison, keys: list[Key], axis: str, name: str) -> list[tuple[Any, Mean]]:
    """A point for each value of the axis, or of the measured number: numbers in order, words as they come."""
    axes, points = list(comparison.recipe.axes), []
    for key in keys:
        mean, measured = _value(comparison, key, name), comparison.value(key, axis)
        x: Any = key[axes.index(axis)] if axis in axes else measured and measured.mean
        if mean is not None and x is not None:
            points.append((x, mean))
    try:
        return sorted((float(x), mean) for x, mean in points)
    except ValueError:
        return points


def _value(comparison: Comparison, key: Key, name: str) -> Mean | None:
    """A measured number, or one that a rule makes for the table."""
    metric = next((m for m, ours in comparison.recipe.values.items() if ours == name), "")
    return comparison.of_cell(key, metric, name)[0]


def _over_rounds(comparison: Comparison, keys: list[Key]) -> list[tuple[Any, Mean]]:
    """The mean over seeds of the curves of one line."""
    values: dict[int, list[float]] = {}
    for key in keys:
        for run in comparison.cells[key]:
            for round_, accuracy in run.curve.items():
                values.setdefault(round_, []).append(accuracy)
    return [(round_, mean_of(v)) for round_, v in sorted(values.items())]


def _line(axes: Axes, points: list[tuple[Any, Mean]], number: int, label: str) -> None:
    colour = COLOURS[number % len(COLOURS)]
    x, means = [p for p, _ in points], [m for _, m in points]
    many = len(points) > 20
    axes.plot(
        x,
        [m.mean for m in means],
        color=colour,
        marker=None if many else MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.2,
        linestyle="none" if isinstance(x[0], str) else "-" if number < len(COLOURS) else "--",
        label=label or None,
    )
    if x and not isinstance(x[0], str):
        band(axes, x, means, colour)


def _quoted(axes: Axes, comparison: Comparison, keys: list[Key], name: str) -> None:
    """Dotted lines where the paper gives a number for a cell of this panel; near ones share a label."""
    metrics = [m for m, ours in comparison.recipe.values.items() if ours == name]
    facts = [dict(zip(comparison.recipe.axes, key, strict=True)) for key in keys]
    levels = sorted(
        printed.value
        for printed in comparison.recipe.printed()
        if printed.metric in metrics
        and not comparison.recipe.reason(printed)
        and sum(printed.agrees(f) for f in facts) == 1
    )
    for level in levels:
        axes.axhline(level, color="gray", linestyle=":", linewidth=1)
    low, high = axes.get_ylim()
    for group in close(levels, _CLOSE * (high - low)):
        text = f"{group[0]:g}" if len(set(group)) == 1 else f"{group[0]:g} to {group[-1]:g}"
        axes.annotate(
            f"paper {text}", (0.99, group[-1]), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize=7, color="gray",
        )  # fmt: skip


def close(levels: list[float], gap: float) -> list[list[float]]:
    """Ascending numbers in groups whose neighbours are less than `gap` apart."""
    groups: list[list[float]] = []
    for level in levels:
        if groups and level - groups[-1][-1] < gap:
            groups[-1].append(level)
        else:
            groups.append([level])
    return groups
