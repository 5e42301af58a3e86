"""How the figures look: distinguishable without colour, a title that says what all runs share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpriv.errors import UserError
from fedpriv.figures.lines import Line
from fedpriv.studies.groups import Mean, text
from fedpriv.studies.reader import Result
from fedpriv.studies.selecting import in_order

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow that print swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX*<>"
STROKES = ("-", "-.", ":")
_WIDE = 3  # panels side by side


@dataclass(frozen=True)
class Drawn:
    """A figure and the numbers in it, a row a point."""

    figure: Figure
    rows: list[dict[str, Any]]


def canvas(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained", dpi=200)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def facets(
    runs: Sequence[Result], key: str, xlabel: str, ylabel: str
) -> tuple[Figure, list[tuple[Axes, list[Result]]]]:
    """A panel for each value of a key, with its runs; one panel for all without a key."""
    if not key:
        figure, axes = canvas(xlabel, ylabel)
        return figure, [(axes, list(runs))]
    if not any(key in run.values for run in runs):
        raise UserError(f"facet={key}: no run has this key; name a key of the runs' config.yaml")
    values = sorted({text(run.values.get(key)) for run in runs}, key=in_order)
    across = min(_WIDE, len(values))
    down = -(-len(values) // across)
    figure = Figure(figsize=(1.2 + 3.3 * across, 0.7 + 3.0 * down), layout="constrained", dpi=200)
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    panels = []
    for value, axes in zip(values, grid.flat, strict=False):
        axes.set_title(f"{key} {value}", fontsize=9)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        panels.append((axes, [run for run in runs if text(run.values.get(key)) == value]))
    for empty in grid.flat[len(values) :]:
        empty.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel, fontsize=9)
    for axes, _ in panels[-across:]:  # the lowest of every column
        axes.set_xlabel(xlabel, fontsize=9)
        axes.tick_params(labelbottom=True)
    return figure, panels


def looks(lines: Iterable[Line], brief: bool = False) -> dict[Line, dict[str, Any]]:
    """Colour says the transform, the stroke the DP variant (dashed: none), the marker each line.

    `brief`: the legend names no transform where no line has one.
    """
    lines = list(lines)
    plain = brief and all(line.transform == "none" for line in lines)
    found: dict[Line, dict[str, Any]] = {}
    methods: dict[Any, str] = {}
    strokes = {"none": "--"}
    for number, line in enumerate(lines):
        method = (line.transform, line.more)
        methods.setdefault(method, COLOURS[len(methods) % len(COLOURS)])
        strokes.setdefault(line.dp, STROKES[(len(strokes) - 1) % len(STROKES)])
        found[line] = {
            "color": methods[method],
            "linestyle": strokes[line.dp],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 5,
            "label": line.brief if plain else line.label,
        }
    return found


def band(axes: Axes, x: Sequence[float], means: Sequence[Mean], colour: str) -> None:
    """The deviation over seeds, where there are several."""
    if any(m.std is not None for m in means):
        low, high = [m.mean - m.spread for m in means], [m.mean + m.spread for m in means]
        if len(means) == 1:
            axes.vlines(x, low, high, color=colour, alpha=0.25, linewidth=8)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def finish(
    drawn: Drawn,
    runs: Sequence[Result],
    look: Mapping[Line, dict[str, Any]],
    *,
    mark: str = "shaded",
    more: str = "",
    about: str = "",
) -> Drawn:
    """Title and legend; `mark` is what shows the deviation over seeds, `more` another remark, `about` what is
    said instead of seeds and deviation."""
    every = drawn.figure.axes
    shared = {k: {str(r.values[k]) for r in runs} for k in ("dataset", "model", "clients", "rounds")}
    one = {k: v.pop() for k, v in shared.items() if len(v) == 1}
    what = ", ".join(one[k] for k in ("dataset", "model") if k in one)
    sizes = ", ".join(f"{one[k]} {k}" for k in ("clients", "rounds") if k in one)
    notes = "; ".join(n for n in (about or _seeds([row["seeds"] for row in drawn.rows], mark), more) if n)
    title = "\n".join([": ".join(t for t in (what, sizes) if t), notes])
    if len(every) == 1:
        every[0].set_title(title, fontsize=9)
    else:
        drawn.figure.suptitle(title, fontsize=9)
    named = {
        label: handle
        for axes in every
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    handles = [named[style["label"]] for style in look.values() if style["label"] in named]
    width, height = drawn.figure.get_size_inches()
    beside = len(handles) > 6
    drawn.figure.set_size_inches(*((width + 2.4, height) if beside else (width, height + 0.4)))
    drawn.figure.legend(
        handles=handles,
        loc="outside right upper" if beside else "outside lower center",  # never on top of the data
        ncols=1 if beside else 2,
        fontsize=7 if beside else 8,
        frameon=False,
        handlelength=4.5,
    )
    return drawn


def _seeds(counts: list[int], mark: str) -> str:
    low, high = min(counts), max(counts)
    if high == 1:
        return "one seed"
    return f"mean of {low if low == high else f'{low} to {high}'} seeds, {mark}: their standard deviation"


def whole_ticks(axes: Axes, values: Iterable[float]) -> None:
    """A tick for each value there is, or whole numbers if those are many."""
    if len(ticks := sorted(set(values))) <= 12:
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def spaced_ticks(axes: Axes, values: Iterable[float]) -> None:
    """A tick for each value, on a logarithmic axis where they spread over much."""
    ticks = sorted(set(values))
    if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] >= 10:
        axes.set_xscale("log")
        axes.minorticks_off()
    whole_ticks(axes, ticks)
