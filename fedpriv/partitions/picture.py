"""What a partition looks like (after FedPD, figure 4): label counts per client, as a table and a heat map."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpriv.figures.saving import save_png
from fedpriv.files import write_table
from fedpriv.partitions.base import Split, label_counts

SHOWN = 200


def save(split: Split, y_train: np.ndarray, y_test: np.ndarray, classes: int, folder: str | Path) -> None:
    """Write partition.csv (both sides, all clients) and partition.png (training side) into the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    train = label_counts(split.train, np.asarray(y_train), classes)
    test = label_counts(split.test, np.asarray(y_test), classes)
    _write_table(train, test, folder / "partition.csv")
    save_png(draw(train), folder / "partition.png")


def _write_table(train: np.ndarray, test: np.ndarray, path: Path) -> None:
    rows: list[list[Any]] = [["client", "side", "samples", *(f"class_{c}" for c in range(train.shape[1]))]]
    for side, counts in (("train", train), ("test", test)):
        rows += ([k, side, row.sum(), *row] for k, row in enumerate(counts))
    write_table(path, rows)


def draw(counts: np.ndarray) -> Figure:
    """Clients from left to right, classes from bottom to top, sizes of the clients above."""
    clients = len(counts)
    shown = counts[:SHOWN]
    figure = Figure(
        figsize=(min(5.0 + 0.3 * len(shown), 12.0), min(3.6 + 0.22 * shown.shape[1], 9.0)),
        dpi=130,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    top, grid = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.2])
    limit = f" (first {SHOWN} of {clients} clients)" if clients > SHOWN else ""
    figure.suptitle(f"Training samples per client and class{limit}", fontsize=12)
    _sizes(top, shown.sum(axis=1))
    _heat(figure, grid, shown)
    figure.align_ylabels([top, grid])
    return figure


def _sizes(axes: Axes, sizes: np.ndarray) -> None:
    axes.bar(np.arange(len(sizes)), sizes, width=0.85, color="#8a97a6")
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _heat(figure: Figure, axes: Axes, counts: np.ndarray) -> None:
    clients, classes = counts.shape
    # The palest shades are skipped so that one sample can be told from none (white).
    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.15, 1, 256))).with_extremes(bad="white")
    # The square root keeps a handful of samples visible beside thousands.
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1))
    cells = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(
        cells, cmap=colours, norm=norm, aspect="auto", origin="lower", interpolation="nearest"
    )
    bar = figure.colorbar(image, ax=axes, label="samples of the class (white: none)", pad=0.02)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    for axis, length in ((axes.xaxis, clients), (axes.yaxis, classes)):
        axis.set_major_locator(MaxNLocator(min(length, 20), integer=True))
    axes.set_xlim(-0.5, clients - 0.5)
    axes.tick_params(length=2)
    if clients <= 12 and classes <= 12:
        for (k, c), count in np.ndenumerate(counts):
            if count:
                ink = "white" if norm(count) > 0.5 else "black"
                axes.text(k, c, str(count), ha="center", va="center", fontsize=7, color=ink)
