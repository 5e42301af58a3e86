"""Which runs are one setting but for the seed, what tells settings apart, and the mean over seeds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpriv.config.catalogue import written
from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.studies.reader import Result

# Without privacy nothing depends on these.
_FOR_PRIVACY = ("epsilon", "delta", "clip_norm", "accountant", "budget")


def text(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def matters(run: Result, key: str) -> bool:
    """Whether a key of the config means anything in this run."""
    if not run.private:
        return key.partition(".")[0] not in _FOR_PRIVACY
    return key != "epsilon" or _asks_for_epsilon(run)


def _asks_for_epsilon(run: Result) -> bool:
    """Whether the clients' budgets are the run's epsilon; drawn and listed ones are not."""
    budget = written("budget").get(str(run.values.get("budget")))
    return budget is None or ("${epsilon}" in budget.values() and "budget.epsilon" not in run.values)


def differing(runs: Sequence[Result], shown: Sequence[str]) -> dict[str, list[str]]:
    """Keys besides `shown` and the seed on which the runs disagree, with the values.

    The values of a group's option are compared among the runs that chose this option.
    """
    found = {}
    for key in dict.fromkeys(k for run in runs for k in run.values if k not in ("seed", *shown)):
        group = key.partition(".")[0]
        seen: dict[Any, set[str]] = {}
        for run in runs:
            if matters(run, key):
                option = run.values.get(group) if key != group and group in GROUPS else None
                seen.setdefault(option, set()).add(text(run.values.get(key)))
        if several := [values for values in seen.values() if len(values) > 1]:
            found[key] = sorted(set().union(*several))
    return found


def by_value(runs: Sequence[Result], key: str) -> dict[Any, list[Result]]:
    """The runs at each value of a key, in ascending order."""
    values = sorted({run.values[key] for run in runs})
    return {value: [run for run in runs if run.values[key] == value] for value in values}


def one_a_seed(runs: Sequence[Result]) -> list[Result]:
    """Runs of one setting, one for each seed; the same numbers found in two folders count once. Of runs that
    differ in what means nothing in them, such as epsilon without privacy, the first counts."""
    found: dict[int, Result] = {}
    for run in runs:
        known = found.setdefault(run.values["seed"], run)
        if known.values == run.values and _numbers(known) != _numbers(run):
            raise UserError(
                f"{known.folder} and {run.folder} hold the same run with other numbers, as after an edit of "
                "a part of your own; leave one of them out"
            )
    return list(found.values())


def _numbers(run: Result) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.rounds]


class Mean(NamedTuple):
    """Over seeds; the deviation divides by their number less one, and one seed has none."""

    mean: float
    std: float | None
    seeds: int

    @property
    def spread(self) -> float:
        """The deviation as a length to draw."""
        return self.std or 0.0


def mean_of(values: Sequence[float]) -> Mean:
    with np.errstate(invalid="ignore"):  # a diverged run's infinite loss has no deviation
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(float(np.mean(values)), std, len(values))


def over_seeds(runs: Sequence[Result], number: Callable[[Result], float]) -> Mean:
    return mean_of([number(run) for run in one_a_seed(runs)])
