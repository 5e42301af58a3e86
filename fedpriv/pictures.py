"""The pictures in a run's folder: accuracy and epsilon over the rounds."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.recorder import Recorder


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
    figure.savefig(folder / "curves.png", dpi=120)
