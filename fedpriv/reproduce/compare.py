"""Ours beside theirs: the mean over seeds of every cell, the printed numbers it answers, and what holds.

A printed metric is answered by a number of ours (`values` of the recipe): a measured one, such as
accuracy_local_best, or one of rules.py, which needs other cells as well.

Verdicts on a printed number
  within    our mean is within 0.03 of an accuracy, 5 % of any other number
  diverged  it is not, and a run ended with an infinite loss or below half of the accuracy it once had in
            the view that the paper reports
  unclear   it is not, but with several seeds the 95 % interval of our mean (Student's t) reaches that band
  better, worse  by the mean of one seed, or by the whole interval of several

Verdicts on two cells of a claim, by the differences seed by seed
  three seeds or more  ties where their 95 % interval (Student's t) holds zero or their mean is below 0.005
  one or two           ties where the mean is below 0.01, or the two disagree on the sign
A diverged run makes no claim hold or fail; a claim one of whose values has cells, but no number, holds in
part at best.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scipy.stats import t as student

from fedpriv.reproduce import rows
from fedpriv.reproduce.recipe import READING, Claim, Recipe
from fedpriv.reproduce.reference import Printed, same
from fedpriv.reproduce.rules import OF_A_LINE, RULES
from fedpriv.studies.groups import Mean, mean_of

CLOSE = 0.03  # accuracies this near to the paper's count as reproduced
CLOSE_RATIO = 0.05  # the same for numbers that are no accuracies
LESS_IS_BETTER = (
    "accuracy_loss", "rounds_to_target", "emd", "uplink_mb", "uplink_bits_per_client_round",
    "epsilon_stable_above", "epsilon_drop_below", "min_rounds",
)  # fmt: skip
VERDICTS = ("within", "better", "worse", "unclear", "diverged", "not run")
_TIED, _TIED_FEW = 0.005, 0.01  # differences that count as none, of several seeds and of one or two
_SEVERAL = 3
_FALLEN = 0.5  # of its best accuracy: a run that ends below has diverged
Key = tuple[str, ...]  # one value of each axis


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _average(means: Sequence[Mean]) -> Mean:
    """Of several cells: it deviates by no more than they do on average."""
    spread = [m.std for m in means if m.std is not None]
    std = _mean(spread) if len(spread) == len(means) else None
    return Mean(_mean([m.mean for m in means]), std, min(m.seeds for m in means))


# What a number of the paper says of several cells: the largest and the smallest are one cell's own.
_STATISTICS: dict[str, Callable[[Sequence[Mean]], Mean]] = {
    "max": partial(max, key=lambda m: m.mean),
    "min": partial(min, key=lambda m: m.mean),
    "mean": _average,
}


@dataclass(frozen=True)
class Answer:
    """A printed number and ours."""

    printed: Printed
    ours: Mean | None
    diverged: bool = False  # one of the runs behind it

    @property
    def difference(self) -> float | None:
        return None if self.ours is None else self.ours.mean - self.printed.value

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
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
        if self.diverged:
            return "diverged"
        if abs(self.difference) - half_width(self.ours) <= close:
            return "unclear"
        return "better" if (self.difference < 0) == (metric in LESS_IS_BETTER) else "worse"


def half_width(mean: Mean) -> float:
    """Half of the 95 % interval of a mean over seeds; one seed tells nothing of it."""
    if not mean.std or mean.seeds < 2 or not math.isfinite(mean.std):
        return 0.0
    return float(student.ppf(0.975, mean.seeds - 1)) * mean.std / math.sqrt(mean.seeds)


def diverged(run: rows.Row, view: str = "global") -> bool:
    """Whether a run ended with an infinite loss, or far below the accuracy that it once had in a view: a
    personal transform may leave the global one behind while it serves its own client."""
    best, last = (run.measured.get(f"accuracy_{view}_{when}") for when in ("best", "last"))
    fell = best is not None and last is not None and last < _FALLEN * best
    return fell or run.measured.get("diverged") == 1


@dataclass(frozen=True)
class Held:
    """How often a claim's ordering holds, ties or fails over the other axes, in one view and reading."""

    claim: Claim
    view: str
    holds: int
    ties: int
    fails: int
    seeds: int = 0  # the fewest behind a comparison
    reading: str = ""
    missing: tuple[str, ...] = ()  # values of the claim that have cells, and no number

    @property
    def verdict(self) -> str:
        if not self.holds + self.ties + self.fails:
            return "not run"
        if self.fails:
            return "fails" if not self.holds else "mixed"
        if self.missing:
            return "in part"
        return "holds" if self.holds > self.ties else "ties"


class Comparison:
    """Everything there is to say about a recipe's finished runs, those in a folder unless they are given."""

    def __init__(self, recipe: Recipe, folder: Path = rows.FOLDER, runs: Sequence[rows.Row] | None = None):
        self.recipe = recipe
        runs = rows.read(recipe, folder) if runs is None else runs
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

    def answers(self, reading: str | None = None) -> list[Answer]:
        """Every printed number that is not left out, and ours by the first reading or by another."""
        wanted = [p for p in self.printed if p.metric in self.recipe.values and not self.recipe.reason(p)]
        if reading is not None:
            wanted = [_read_as(p, reading) for p in wanted]
        return [self.answer(p) for p in wanted]

    def answer(self, printed: Printed) -> Answer:
        runs = [run for key in self._answering(printed) for run in self.cells.get(key, ())]
        view = next(iter(self.views()), "global")  # the one that the paper reports
        return Answer(printed, self.ours(printed), any(diverged(run, view) for run in runs))

    def _answering(self, printed: Printed) -> list[Key]:
        keys = [key for key in self.keys() if printed.agrees(dict(zip(self.recipe.axes, key, strict=True)))]
        return keys[:1] if self.recipe.values[printed.metric] in OF_A_LINE else keys

    def ours(self, printed: Printed) -> Mean | None:
        """Our number for a printed one; a maximum, mean or minimum over cells where the paper gives that."""
        name, keys = self.recipe.values[printed.metric], self._answering(printed)
        found = [RULES[name](self, k, printed) if name in RULES else self.value(k, name) for k in keys]
        known = [m for m in found if m is not None]
        if not known or len(known) < len(keys):
            return None
        if len(known) == 1:
            return known[0]
        statistic = _STATISTICS.get(printed.fact("stat") or "")
        return statistic and statistic(known)  # none: the paper does not say which of the cells it means

    def of_cell(self, key: Key, metric: str, name: str) -> tuple[Mean | None, Printed | None]:
        """Our number for a cell of the table and the one printed in its place, whatever the reading."""
        facts = dict(zip(self.recipe.axes, key, strict=True))
        reading = facts.get(READING)
        every = self.printed if reading is None else [_read_as(p, reading) for p in self.printed]
        found = [
            p
            for p in every
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
            self._held(claim, view, name, reading)
            for claim in self.recipe.claims
            for view, name in self._meanings(claim.metric).items()
            for reading in self.recipe.readings or [""]
        ]

    def held_in_own_view(self, reading: str | None = None) -> list[Held]:
        """Claims that were run, in the view that the paper reports, by the first reading or another."""
        own = next(iter(self.views()), "")
        wanted = (self.recipe.readings or [""])[0] if reading is None else reading
        run = [h for h in self.held() if h.verdict != "not run" and h.reading == wanted]
        return [h for h in run if h.claim.metric != "accuracy" or h.view == own]

    def _meanings(self, metric: str) -> dict[str, str]:
        """Where a claim is looked up: accuracies in both views, another number as it is."""
        return self.views() if metric == "accuracy" else {metric: self.recipe.values[metric]}

    def _held(self, claim: Claim, view: str, name: str, reading: str) -> Held:
        counts, seeds = {"holds": 0, "ties": 0, "fails": 0}, []
        place = list(self.recipe.axes).index(claim.axis)
        only = {**claim.only, READING: reading} if reading else claim.only
        others = {key[:place] + key[place + 1 :] for key in self.cells if self._meant(key, only)}
        for other in others:
            found = [self.by_seed((*other[:place], v, *other[place:]), name) for v in claim.values]
            for a, b in itertools.pairwise(found):
                if both := sorted(a.keys() & b.keys()):
                    counts[compared([a[seed] - b[seed] for seed in both])] += 1
                    seeds.append(len(both))
        meant = [key for key in self.keys() if self._meant(key, only)]
        untold = {key[place] for key in meant} - {key[place] for key in meant if self.by_seed(key, name)}
        missing = tuple(value for value in claim.values if value in untold)
        return Held(claim, view, **counts, seeds=min(seeds, default=0), reading=reading, missing=missing)

    def by_seed(self, key: Key, name: str) -> dict[int, float]:
        """A measured number of a cell's runs that did not diverge."""
        runs = [run for run in self.cells.get(key, ()) if not run.measured.get("diverged")]
        found = {run.seed: run.measured.get(name) for run in runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def _meant(self, key: Key, only: Mapping[str, object]) -> bool:
        facts = dict(zip(self.recipe.axes, key, strict=True))
        allowed = {a: v if isinstance(v, list) else [v] for a, v in only.items()}
        return all(any(same(facts[a], str(v)) for v in values) for a, values in allowed.items())


def _read_as(printed: Printed, reading: str) -> Printed:
    return replace(printed, facts=tuple((dict(printed.facts) | {READING: reading}).items()))


def compared(differences: Sequence[float]) -> str:
    """holds, ties or fails, by how much larger one cell is than the other with each seed."""
    mean, seeds = _mean(differences), len(differences)
    if seeds >= _SEVERAL:
        none = abs(mean) <= max(_TIED, half_width(Mean(mean, statistics.stdev(differences), seeds)))
    else:
        none = abs(mean) <= _TIED_FEW or min(differences) < 0 < max(differences)
    return "ties" if none else "holds" if mean > 0 else "fails"
