"""How the figures look: distinguishable without colour, a title that says what all runs share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpriv.figures.lines import Line
from fedpriv.studies.groups import Mean
from fedpriv.studies.reader import Result

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow that print swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX*<>"
STROKES = ("-", "-.", ":")


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


def looks(lines: Iterable[Line]) -> dict[Line, dict[str, Any]]:
    """Colour says the transform, the stroke the DP variant (dashed: none), the marker each line."""
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
            "label": line.label,
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
) -> Drawn:
    """Title and legend; `mark` is what shows the deviation over seeds, `more` another remark."""
    (axes,) = drawn.figure.axes
    shared = {k: {str(r.values[k]) for r in runs} for k in ("dataset", "model", "clients", "rounds")}
    one = {k: v.pop() for k, v in shared.items() if len(v) == 1}
    what = ", ".join(one[k] for k in ("dataset", "model") if k in one)
    sizes = ", ".join(f"{one[k]} {k}" for k in ("clients", "rounds") if k in one)
    notes = "; ".join(n for n in (_seeds([row["seeds"] for row in drawn.rows], mark), more) if n)
    axes.set_title("\n".join([": ".join(t for t in (what, sizes) if t), notes]), fontsize=9)
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    handles = [named[style["label"]] for style in look.values()]
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
