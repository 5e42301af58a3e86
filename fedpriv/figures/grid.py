"""Images in rows and columns with their names, pixel by pixel."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

Image = np.ndarray  # [c, h, w] with one channel (grey) or three (colour)


def span(images: Sequence[Image]) -> tuple[float, float]:
    """The smallest and largest number of some images; what is not a number does not count."""
    values = np.concatenate([np.ravel(i) for i in images])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def grid(
    images: Sequence[Sequence[Image | None]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    shared: bool,
) -> Figure:
    """All on one scale, shown at the side; or each on its own, which is written below it."""
    present = [i for row in images for i in row if i is not None]
    whole, coloured = span(present), any(len(i) == 3 for i in present)
    figure = Figure(
        figsize=(1.6 + 0.85 * len(columns), 0.9 + (0.85 if shared else 1.05) * len(rows)),
        layout="constrained",
        dpi=200,
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), len(columns), squeeze=False)
    for r, row in enumerate(images):
        for c, image in enumerate(row):
            axes = panels[r, c]
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(linewidth=0.4, color="0.6")
            if r == 0:
                axes.set_title(columns[c], fontsize=8)
            if c == 0:
                axes.set_ylabel(rows[r], fontsize=8, rotation=0, ha="right", va="center")
            if image is None:
                axes.set_frame_on(False)
                axes.set_box_aspect(1)
                axes.text(0.5, 0.5, "no run", ha="center", va="center", fontsize=7, color="0.5")
                continue
            low, high = whole if shared else span([image])
            axes.imshow(_shown(image, low, high), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            if not shared:
                axes.set_xlabel(f"{low:.2g} to {high:.2g}", fontsize=6, labelpad=2)
    figure.suptitle(textwrap.fill(title, int(13 * figure.get_size_inches()[0])), fontsize=9)
    if shared and not coloured:
        bar = figure.colorbar(
            ScalarMappable(Normalize(*whole), "gray"), ax=panels, fraction=0.03, pad=0.01, aspect=30
        )
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_linewidth(0.4)
    return figure


def _shown(image: Image, low: float, high: float) -> np.ndarray:
    """Grey [h, w] or colour [h, w, 3] between 0 and 1; what is not a number is black."""
    scaled = np.clip((image.astype(float) - low) / max(high - low, 1e-12), 0, 1)
    scaled = np.nan_to_num(scaled, nan=0.0)
    return scaled[0] if len(image) == 1 else scaled.transpose(1, 2, 0)
