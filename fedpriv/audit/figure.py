"""audit.png: what was measured beside what is promised, and the ROC curve of membership inference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.audit.finding import Result
from fedpriv.figures.grid import grid
from fedpriv.figures.saving import save_png
from fedpriv.figures.style import COLOURS

_FAR = 30.0  # times the largest bar, from which a promise asks for a logarithmic axis


def draw(results: Sequence[Result], title: str, path: Path) -> None:
    figure = Figure(figsize=(8.6, 4.0), layout="constrained", dpi=200)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    bars = [r for r in results if r.bound is not None]
    for place, result in enumerate(bars):
        assert result.bound is not None
        look = (
            {"color": COLOURS[0]}
            if result.is_bound
            else {"color": "white", "hatch": "//", "edgecolor": COLOURS[0]}
        )
        left.bar(place, max(result.bound, 1e-2), width=0.6, **look)
        left.annotate(
            f"{result.bound:.2f}", (place, max(result.bound, 1e-2)), ha="center", va="bottom", fontsize=8
        )
        if result.against is not None:
            left.hlines(result.against, place - 0.4, place + 0.4, color=COLOURS[1], linewidth=2)
            left.annotate(
                f"{result.against:.3g}",
                (place + 0.4, result.against),
                fontsize=7,
                color=COLOURS[1],
                va="bottom",
                ha="right",
            )
    values = [v for r in bars for v in (r.bound, r.against) if v]
    if values and max(values) > _FAR * max(max((r.bound or 0.0) for r in bars), 1e-2):
        left.set_yscale("log")
    left.set_xticks(range(len(bars)), [r.kind for r in bars])
    left.set_ylabel("epsilon")
    left.set_title("measured (hatched: an estimate)\nand provable (line)", fontsize=9)
    if not bars:
        left.text(0.5, 0.5, "no bound was measured", ha="center", transform=left.transAxes)
    curve = next((r.details["roc"] for r in results if "roc" in r.details), None)
    right.plot([0, 1], [0, 1], linestyle="--", color="0.6", linewidth=1)
    right.set(xlabel="false alarms", ylabel="members found", xlim=(0, 1), ylim=(0, 1))
    if curve is None:
        right.text(0.5, 0.3, "no membership inference", ha="center", color="0.4")
    else:
        area = next(r.details["auc"] for r in results if "roc" in r.details)
        right.plot(curve["false"], curve["true"], color=COLOURS[2], label=f"AUC {area:.3f}")
        right.legend(frameon=False, loc="lower right", fontsize=8)
    right.set_title("membership inference by loss", fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    figure.suptitle(title, fontsize=9)
    save_png(figure, path)


def draw_images(pictures: dict[str, list[np.ndarray]], path: Path) -> None:
    """Rebuilt images, a row a kind."""
    columns = [str(n + 1) for n in range(len(next(iter(pictures.values()))))]
    figure = grid(
        list(pictures.values()),
        rows=list(pictures),
        columns=columns,
        title="What an attacker rebuilds: raw samples, for looking and not for a release",
        shared=False,
    )
    save_png(figure, path)
