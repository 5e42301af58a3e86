"""Hand-made run folders with known numbers: what a study reads."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedpriv import compose


@cache
def config(*overrides: str) -> str:
    """config.yaml; composing takes Hydra long, and many tests ask for the same."""
    return OmegaConf.to_yaml(compose(*overrides), resolve=True)


COLUMNS = "round,accuracy_global,accuracy_local,loss_global,epsilon_max,uplink_bytes,seconds"


def put(
    folder: Path,
    *overrides: str,
    accuracies: Sequence[float] = (0.25, 0.5),
    finished: bool = True,
    loss: float = 1.0,
    seconds: float = 2.0,
    error: str | None = None,
    **summary: Any,
) -> Path:
    """A run that was told `overrides` and measured `accuracies`, one a round; with an error it failed."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config(*overrides))
    rows = [f"{n},{a},{a},{loss},{n},1000000,{seconds}" for n, a in enumerate(accuracies, 1)]
    (folder / "metrics.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    if error:
        (folder / "status.json").write_text(json.dumps({"error": error}))
    elif finished:
        known = {"accuracy_global_last": accuracies[-1], "accuracy_global_best": max(accuracies)}
        known |= {"epsilon_spent": 8.0, "seconds": seconds * len(accuracies), "rounds": len(accuracies)}
        (folder / "summary.json").write_text(json.dumps(known | summary))
    return folder
