"""Numbers of ours that need more than one run: each rule says how a number follows from several cells, seed
by seed where both have several.

  gain               our value minus that of the cell the paper compares with
  loss               how far our value stays below that one
  target             FedAvg's best accuracy in whole percent, as FedPD rounds it down
  rounds_to_target   the first round that reaches it, seed by seed; infinite if a seed never does
  speedup            FedAvg's rounds to the target over ours; zero if a seed never reaches it
  megabytes          everything clients sent, in units of 2^20 bytes
  reduction          by which share that is less than what the other cell sent
  reduction_private  the same of one client that sends coordinates, against a whole vector
  bits_private       what such a client sends in a round
  stable_above       the smallest epsilon from which on accuracy stays near that of the largest
  drop_below         the same, allowing a larger loss

The other cell is what the number's `against` says, else the method it is `over` or `relative_to`, else
FedAvg.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedpriv.reproduce.reference import Printed
from fedpriv.reproduce.rows import Row
from fedpriv.studies.groups import Mean, mean_of

if TYPE_CHECKING:
    from fedpriv.reproduce.compare import Comparison, Key

NEAR = 0.03  # an accuracy that "stays high" (LDP-FL, Figure 5) is this near to the best-funded one
FAR = 0.1  # one that "drops significantly" is further off than this
BASE = "fedavg"


def other(c: Comparison, key: Key, printed: Printed) -> Key:
    """The cell a difference is taken to."""
    against = printed.against or {
        "method": printed.fact("over") or printed.fact("relative_to") or BASE,
    }
    for axis, value in against.items():
        own = dict(zip(c.recipe.axes, key, strict=True))[axis]
        key = c.with_value(key, axis, str(value[own] if isinstance(value, dict) else value))
    return key


def _paired(
    ours: Mapping[int, float], theirs: Mapping[int, float], how: Callable[[float, float], float]
) -> Mean | None:
    """What becomes of two cells, by the seeds that both have."""
    both = sorted(ours.keys() & theirs.keys())
    return mean_of([how(ours[seed], theirs[seed]) for seed in both]) if both else None


def gain(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    name, base = c.recipe.values["accuracy"], other(c, key, printed)
    ours, theirs = c.value(key, name), c.value(base, name)
    if ours is None or theirs is None:
        return None
    if math.isnan(ours.mean + theirs.mean):  # one diverged
        return Mean(math.nan, None, min(ours.seeds, theirs.seeds))
    return _paired(c.by_seed(key, name), c.by_seed(base, name), lambda own, base: own - base)


def loss(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    found = gain(c, key, printed)
    return found and Mean(-found.mean, found.std, found.seeds)


# -- FedPD: rounds to FedAvg's best accuracy


def _targets(c: Comparison, key: Key) -> dict[int, float]:
    """The target of every seed."""
    runs = c.cells.get(c.with_value(key, "method", BASE), ())
    best = {run.seed: run.measured["accuracy_global_best"] for run in runs}
    return {seed: math.floor(b * 100 + 1e-6) / 100 for seed, b in best.items() if b is not None}


def target(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    found = list(_targets(c, key).values())
    return mean_of(found) if found else None


def _reached(run: Row, goal: float) -> float:
    return next((r for r, accuracy in sorted(run.curve.items()) if accuracy >= goal), math.inf)


def _rounds(c: Comparison, key: Key) -> dict[int, float]:
    """Of every seed."""
    goals = _targets(c, key)
    runs = [run for run in c.cells.get(key, ()) if run.seed in goals and run.curve]
    return {run.seed: _reached(run, goals[run.seed]) for run in runs}


def rounds_to_target(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    found = list(_rounds(c, key).values())
    return mean_of(found) if found else None


def speedup(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    ours, base = _rounds(c, key), _rounds(c, c.with_value(key, "method", BASE))
    if math.inf in ours.values():
        return Mean(0.0, None, len(ours))
    whole, part = (
        mean_of([some[s] for s in ours.keys() & base.keys()] or [math.nan]) for some in (base, ours)
    )
    ratio = whole.mean / part.mean
    # A ratio of means deviates as its seeds do from it.
    off = _paired(base, ours, lambda all_, own: (all_ - ratio * own) / part.mean)
    return off and Mean(ratio, off.std, off.seeds)


# -- PFA: what clients send


def megabytes(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    sent = c.value(key, "uplink_bytes")
    return sent and Mean(sent.mean / 2**20, None if sent.std is None else sent.std / 2**20, sent.seeds)


def _sent(c: Comparison, key: Key) -> dict[int, float]:
    """Bytes of every seed, whatever it learned."""
    found = {run.seed: run.measured["uplink_bytes"] for run in c.cells.get(key, ())}
    return {seed: sent for seed, sent in found.items() if sent is not None}


def reduction(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    return _paired(_sent(c, key), _sent(c, other(c, key, printed)), lambda own, all_: 1 - own / all_)


def reduction_private(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    ours, weights = c.value(key, "uplink_bytes_projected"), c.value(key, "parameters")
    return ours and weights and Mean(1 - ours.mean / (4 * weights.mean), None, ours.seeds)


def bits_private(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    ours = c.value(key, "uplink_bytes_projected")
    return ours and Mean(8 * ours.mean, None, ours.seeds)


# -- LDP-FL: from which epsilon on


def _above(c: Comparison, key: Key, allowed: float) -> Mean | None:
    name, place, cells = c.recipe.values["accuracy"], list(c.recipe.axes).index("epsilon"), c.keys()
    line = [k for k in cells if c.with_value(k, "epsilon", key[place]) == key]
    line = sorted((k for k in line if math.isfinite(float(k[place]))), key=lambda k: -float(k[place]))
    found = [c.value(k, name) for k in line]
    known = [mean for mean in found if mean is not None]
    if not known or len(known) < len(found):
        return None
    enough = itertools.takewhile(lambda mean: mean.mean >= known[0].mean - allowed, known)
    return Mean(float(line[len(list(enough)) - 1][place]), None, known[0].seeds)


def stable_above(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    return _above(c, key, NEAR)


def drop_below(c: Comparison, key: Key, printed: Printed) -> Mean | None:
    return _above(c, key, FAR)


Rule = Callable[["Comparison", "Key", Printed], "Mean | None"]
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        gain, loss, target, rounds_to_target, speedup, megabytes, reduction, reduction_private, bits_private,
        stable_above, drop_below,
    )
}  # fmt: skip
# One number for a whole line of cells, so that any cell of the line answers.
OF_A_LINE = ("stable_above", "drop_below")
