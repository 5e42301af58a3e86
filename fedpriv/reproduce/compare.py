"""Ours beside theirs: the mean over seeds of every cell, the printed numbers it answers, and what holds.

A printed metric is answered by a number of ours (`values` of the recipe): a measured one, such as
accuracy_local_best, or one of rules.py, which needs other cells as well.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.reproduce import rows
from fedpriv.reproduce.recipe import Claim, Recipe
from fedpriv.reproduce.reference import Printed, same
from fedpriv.reproduce.rules import OF_A_LINE, RULES
from fedpriv.studies.groups import Mean, mean_of

CLOSE = 0.03  # accuracies this near to the paper's count as reproduced
CLOSE_RATIO = 0.05  # the same for numbers that are no accuracies
LESS_IS_BETTER = (
    "accuracy_loss", "rounds_to_target", "emd", "uplink_mb", "uplink_bits_per_client_round",
    "epsilon_stable_above", "epsilon_drop_below", "min_rounds",
)  # fmt: skip
_TIED = 0.005
Key = tuple[str, ...]  # one value of each axis


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "mean": _mean}


@dataclass(frozen=True)
class Answer:
    """A printed number and ours."""

    printed: Printed
    ours: Mean | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None else self.ours.mean - self.printed.value

    @property
    def verdict(self) -> str:
        """within, better, worse, diverged or not run."""
        if self.difference is None or self.ours is None:
            return "not run"
        if math.isnan(self.ours.mean):
            return "diverged"
        if math.isnan(self.printed.value):  # printed as never reached, which makes a speed-up of none
            return "within" if self.ours.mean in (0, math.inf) else "better"
        metric = self.printed.metric
        accuracy = metric.startswith("accuracy") or metric == "target_accuracy"
        close = CLOSE if accuracy else CLOSE_RATIO * abs(self.printed.value)
        if abs(self.difference) <= close + 1e-9:
            return "within"
        return "better" if (self.difference < 0) == (metric in LESS_IS_BETTER) else "worse"


@dataclass(frozen=True)
class Held:
    """How often a claim's ordering holds, ties or fails over the other axes, in one view."""

    claim: Claim
    view: str
    holds: int
    ties: int
    fails: int

    @property
    def verdict(self) -> str:
        if not self.holds + self.ties + self.fails:
            return "not run"
        if self.fails:
            return "fails" if not self.holds else "mixed"
        return "holds" if self.holds > self.ties else "ties"


class Comparison:
    """Everything there is to say about a recipe's finished runs."""

    def __init__(self, recipe: Recipe, folder: Path = rows.FOLDER):
        self.recipe = recipe
        runs = rows.read(recipe, folder)
        # A cell at two scales is two settings: no mean over both; the paper's own counts where it was run.
        whole = {tuple(run.cell.values()) for run in runs if run.scale == "full"}
        self.runs = [run for run in runs if run.scale == "full" or tuple(run.cell.values()) not in whole]
        self.cells: dict[Key, list[rows.Row]] = {}
        self.printed = recipe.printed()
        self._keys = [tuple(v for _, v in cell.values) for cell in recipe.cells("full")]
        for run in self.runs:
            self.cells.setdefault(tuple(run.cell[axis] for axis in recipe.axes), []).append(run)

    def value(self, key: Key, name: str) -> Mean | None:
        """A measured number of a cell over its seeds; not a number where one of them diverged."""
        if name.startswith("accuracy") and any(
            run.measured.get("diverged") for run in self.cells.get(key, ())
        ):
            return Mean(math.nan, None, len(self.cells[key]))
        found = [run.measured.get(name) for run in self.cells.get(key, ())]
        numbers = [v for v in found if v is not None]
        return mean_of(numbers) if numbers else None

    def answers(self) -> list[Answer]:
        """Every printed number of this artifact that the recipe does not leave out."""
        wanted = [p for p in self.printed if p.metric in self.recipe.values and not self.recipe.reason(p)]
        return [Answer(p, self.ours(p)) for p in wanted]

    def ours(self, printed: Printed) -> Mean | None:
        """Our number for a printed one; a maximum, mean or minimum over cells where the paper gives that."""
        name = self.recipe.values[printed.metric]
        keys = [key for key in self.keys() if printed.agrees(dict(zip(self.recipe.axes, key, strict=True)))]
        if name in OF_A_LINE:
            keys = keys[:1]
        found = [RULES[name](self, k, printed) if name in RULES else self.value(k, name) for k in keys]
        known = [m for m in found if m is not None]
        if not known or len(known) < len(keys):
            return None
        if len(known) == 1:
            return known[0]
        statistic = _STATISTICS.get(printed.fact("stat") or "")
        if statistic is None:
            return None  # several cells answer to it, and the paper does not say which
        return Mean(statistic([m.mean for m in known]), None, min(m.seeds for m in known))

    def of_cell(self, key: Key, metric: str, name: str) -> tuple[Mean | None, Printed | None]:
        """Our number for a cell of the table and the one printed in its place."""
        facts = dict(zip(self.recipe.axes, key, strict=True))
        found = [
            p
            for p in self.printed
            if p.metric == metric and not p.fact("stat") and p.agrees(facts) and not self.recipe.reason(p)
        ]
        own = [p for p in found if p.artifact == self.recipe.artifact] or found
        printed = own[0] if len({p.value for p in own}) == 1 else None
        if name in RULES:
            return (self.ours(printed) if printed else None), printed
        return self.value(key, name), printed

    def keys(self) -> list[Key]:
        """Every cell of the recipe, run or not."""
        return self._keys

    def with_value(self, key: Key, axis: str, value: str) -> Key:
        return tuple(value if a == axis else v for a, v in zip(self.recipe.axes, key, strict=True))

    # -- claims

    def views(self) -> dict[str, str]:
        """The paper's view of accuracy, and the other one."""
        name = self.recipe.values.get("accuracy")
        if not name:
            return {}
        here, there = ("local", "global") if "_local_" in name else ("global", "local")
        return {here: name, there: name.replace(f"_{here}_", f"_{there}_")}

    def held(self) -> list[Held]:
        return [
            self._held(claim, view, name)
            for claim in self.recipe.claims
            for view, name in self._meanings(claim.metric).items()
        ]

    def held_in_own_view(self) -> list[Held]:
        """Claims that were run, as the paper looks at them: accuracies in the view it reports."""
        own = next(iter(self.views()), "")
        run = [h for h in self.held() if h.verdict != "not run"]
        return [h for h in run if h.claim.metric != "accuracy" or h.view == own]

    def _meanings(self, metric: str) -> dict[str, str]:
        """Where a claim is looked up: accuracies in both views, another number as it is."""
        return self.views() if metric == "accuracy" else {metric: self.recipe.values[metric]}

    def _held(self, claim: Claim, view: str, name: str) -> Held:
        counts = {"holds": 0, "ties": 0, "fails": 0}
        place = list(self.recipe.axes).index(claim.axis)
        others = {key[:place] + key[place + 1 :] for key in self.cells if self._meant(key, claim.only)}
        for other in others:
            found = [self.value((*other[:place], v, *other[place:]), name) for v in claim.values]
            for a, b in itertools.pairwise(found):
                if a is not None and b is not None and not (math.isnan(a.mean) or math.isnan(b.mean)):
                    counts[_compared(a, b)] += 1
        return Held(claim, view, **counts)

    def _meant(self, key: Key, only: Mapping[str, object]) -> bool:
        facts = dict(zip(self.recipe.axes, key, strict=True))
        allowed = {a: v if isinstance(v, list) else [v] for a, v in only.items()}
        return all(any(same(facts[a], str(v)) for v in values) for a, values in allowed.items())


def _compared(a: Mean, b: Mean) -> str:
    """A difference of at most half a point, or of two of its standard deviations, is a tie."""
    error = math.sqrt(a.spread**2 / a.seeds + b.spread**2 / b.seeds)
    if abs(a.mean - b.mean) <= max(_TIED, 2 * error):
        return "ties"
    return "holds" if a.mean > b.mean else "fails"
