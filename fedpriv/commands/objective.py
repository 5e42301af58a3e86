"""What a search is told of a run: the numbers of its summary that `objective` names."""

import math
from typing import Any

from omegaconf import DictConfig, ListConfig

from fedpriv.config.limits import cut
from fedpriv.errors import UserError

USUAL = "accuracy_global_validation"
HELD_OUT = "_validation"


def names_of(cfg: DictConfig) -> list[str]:
    """The keys, refused where a run would not have them for want of held-out samples."""
    given = cfg.objective
    names = (
        [USUAL]
        if given is None
        else [str(v) for v in given]
        if isinstance(given, ListConfig)
        else [str(given)]
    )
    if not cfg.validation and (held := [name for name in names if name.endswith(HELD_OUT)]):
        raise UserError(
            f"objective={held[0]}: no samples are held out; set validation=0.1, or choose on test data with "
            "objective=accuracy_global_last"
        )
    return names


def values_of(summary: dict[str, Any], names: list[str]) -> list[float]:
    for name in names:
        value = summary.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            numbers = [k for k, v in summary.items() if isinstance(v, int | float)]
            raise UserError(f"objective={cut(name)}: no number of summary.json; it has {', '.join(numbers)}")
    return [float(summary[name]) for name in names]
