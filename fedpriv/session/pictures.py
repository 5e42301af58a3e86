"""The pictures in a run's folder: accuracy and epsilon over the rounds, and the clients' budgets."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpriv.files import atomically
from fedpriv.rounds.trainer import Trainer
from fedpriv.session.recorder import Recorder


def curves(recorder: Recorder, title: str, folder: Path) -> None:
    """curves.png: both accuracies on the left axis, the largest epsilon spent on the right."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    measured = [r for r in recorder.rows if r["accuracy_local"]]
    rounds = [int(r["round"]) for r in measured]
    for view, colour, width in (("local", "tab:blue", 4), ("global", "tab:orange", 1.5)):
        values = [float(r[f"accuracy_{view}"]) for r in measured]
        axes.plot(rounds, values, color=colour, linewidth=width, label=f"accuracy, {view}")
    axes.set(xlabel="round", ylabel="accuracy", ylim=(0, 1), title=title)
    axes.grid(alpha=0.3)
    spent = [(int(r["round"]), float(r["epsilon_max"])) for r in recorder.rows if r["epsilon_max"] != "inf"]
    if spent:
        right = axes.twinx()
        right.plot(
            *zip(*spent, strict=True), color="tab:gray", linestyle="--", label="epsilon spent (largest)"
        )
        right.set(ylabel="epsilon", ylim=(0, None))
        handles = axes.get_legend_handles_labels()[0] + right.get_legend_handles_labels()[0]
    else:
        handles = axes.get_legend_handles_labels()[0]
    axes.legend(handles=handles, loc="lower right")
    with atomically(folder / "curves.png") as file:
        figure.savefig(file, format="png", dpi=120)


def budgets(trainer: Trainer, folder: Path) -> None:
    """budgets.png: how many clients have which epsilon; only where they differ."""
    epsilon = trainer.setting.budgets
    low, high = float(epsilon.min()), float(epsilon.max())
    if low == high or trainer.ledger.guarantee.unit == "none":
        return
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    wide = high / low > 20  # then on a logarithmic axis, or the strict clients would share one bar
    edges = np.geomspace(low, high, 31) if wide else np.linspace(low, high, 31)
    axes.hist(epsilon, bins=edges.tolist(), color="#8a97a6", edgecolor="white")
    axes.set(xlabel="epsilon of a client", ylabel="clients", xscale="log" if wide else "linear")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(f"Privacy budgets of {len(epsilon)} clients: {low:.3g} to {high:.3g}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    with atomically(folder / "budgets.png") as file:
        figure.savefig(file, format="png", dpi=120)
