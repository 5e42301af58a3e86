"""Pictures on the disk."""

from pathlib import Path

from matplotlib.figure import Figure

from fedpriv.files import atomically


def save_png(figure: Figure, path: Path) -> None:
    """Whole or not at all; without the version stamp, so that the same picture has the same bytes."""
    with atomically(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
