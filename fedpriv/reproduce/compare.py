"""Ours beside theirs: the mean over seeds of every cell, the printed numbers it answers, and what holds.

A printed metric is answered by a number of ours (`values` of the recipe): a measured one, such as
accuracy_local_best, or one of the rules here, which need other cells as well:

  gain     our value minus that of the cell whose method the paper compares with (`over`)
  loss     how far our value stays below that of the cell it is `relative_to`
  speedup  FedAvg's rounds to its target over ours
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.figures.lines import Mean, mean_of
from fedpriv.reproduce import rows
from fedpriv.reproduce.recipe import Claim, Recipe
from fedpriv.reproduce.reference import Printed, same

CLOSE = 0.03  # accuracies this near to the paper's count as reproduced
CLOSE_RATIO = 0.05  # the same for numbers that are no accuracies
_TIED = 0.005
RULES = ("gain", "loss", "speedup")
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
        """within, better, worse; for what is no accuracy: within, higher, lower; or not run."""
        if self.difference is None or math.isnan(self.printed.value):
            return "not run" if self.ours is None else "not comparable"
        accuracy = self.printed.metric.startswith("accuracy") or self.printed.metric == "target_accuracy"
        close = CLOSE if accuracy else CLOSE_RATIO * abs(self.printed.value)
        if abs(self.difference) <= close + 1e-9:
            return "within"
        above, below = ("better", "worse") if accuracy else ("higher", "lower")
        if self.printed.metric == "accuracy_loss":
            above, below = below, above
        return above if self.difference > 0 else below


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
        return "holds" if self.holds >= self.ties else "ties"


class Comparison:
    """Everything there is to say about a recipe's finished runs."""

    def __init__(self, recipe: Recipe, folder: Path = rows.FOLDER):
        self.recipe = recipe
        self.runs = rows.read(recipe, folder)
        self.cells: dict[Key, list[rows.Row]] = {}
        for run in self.runs:
            self.cells.setdefault(tuple(run.cell[axis] for axis in recipe.axes), []).append(run)

    def value(self, key: Key, name: str) -> Mean | None:
        """A measured number of a cell over its seeds."""
        found = [run.measured.get(name) for run in self.cells.get(key, ())]
        numbers = [v for v in found if v is not None]
        return mean_of(numbers) if numbers else None

    def answers(self) -> list[Answer]:
        """Every printed number of this artifact that the recipe does not leave out."""
        wanted = [
            p for p in self.recipe.printed() if p.metric in self.recipe.values and not self.recipe.reason(p)
        ]
        return [Answer(p, self.ours(p)) for p in wanted]

    def ours(self, printed: Printed) -> Mean | None:
        """Our number for a printed one; a maximum, mean or minimum over cells where the paper gives that."""
        rule = self.recipe.values[printed.metric]
        keys = [key for key in self.keys() if printed.agrees(dict(zip(self.recipe.axes, key, strict=True)))]
        if rule in RULES:
            found = [self._ruled(rule, key, printed) for key in keys]
        else:
            found = [self.value(key, rule) for key in keys]
        known = [m for m in found if m is not None]
        if not known or len(known) < len(keys):
            return None
        if len(known) == 1:
            return known[0]
        statistic = _STATISTICS.get(printed.fact("stat") or "")
        if statistic is None:
            return None  # several cells answer to it, and the paper does not say which
        return Mean(statistic([m.mean for m in known]), None, min(m.seeds for m in known))

    def keys(self) -> list[Key]:
        """Every cell of the recipe, run or not."""
        return [tuple(v for _, v in cell.values) for cell in self.recipe.cells("full")]

    def _ruled(self, rule: str, key: Key, printed: Printed) -> Mean | None:
        measured = self.recipe.values["rounds_to_target" if rule == "speedup" else "accuracy"]
        other = printed.fact("over") or printed.fact("relative_to") or "fedavg"
        ours, theirs = self.value(key, measured), self.value(self._with(key, "method", other), measured)
        if ours is None or theirs is None:
            return None
        if rule == "speedup":
            return Mean(theirs.mean / ours.mean, None, ours.seeds)
        sign = 1 if rule == "gain" else -1
        spread = math.hypot(ours.spread, theirs.spread) if ours.std is not None else None
        return Mean(sign * (ours.mean - theirs.mean), spread, min(ours.seeds, theirs.seeds))

    def _with(self, key: Key, axis: str, value: str) -> Key:
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
            for view, name in self.views().items()
        ]

    def _held(self, claim: Claim, view: str, name: str) -> Held:
        counts = {"holds": 0, "ties": 0, "fails": 0}
        place = list(self.recipe.axes).index(claim.axis)
        others = {key[:place] + key[place + 1 :] for key in self.cells if self._meant(key, claim.only)}
        for other in others:
            found = [self.value((*other[:place], v, *other[place:]), name) for v in claim.values]
            for a, b in itertools.pairwise(found):
                if a is not None and b is not None:
                    counts[_compared(a, b)] += 1
        return Held(claim, view, **counts)

    def _meant(self, key: Key, only: Mapping[str, object]) -> bool:
        facts = dict(zip(self.recipe.axes, key, strict=True))
        allowed = {a: v if isinstance(v, list) else [v] for a, v in only.items()}
        return all(any(same(facts[a], str(v)) for v in values) for a, values in allowed.items())


def _compared(a: Mean, b: Mean) -> str:
    """Two deviations of the mean's difference, at least half a point, count as a tie."""
    error = math.sqrt(a.spread**2 / a.seeds + b.spread**2 / b.seeds)
    if abs(a.mean - b.mean) <= max(_TIED, 2 * error):
        return "ties"
    return "holds" if a.mean > b.mean else "fails"
