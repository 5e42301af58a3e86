"""A recipe: how one published table or figure is rebuilt (conf/paper/<paper>/<artifact>.yaml).

It holds overrides of `fedpriv run` and the sweep over them, and no copy of a default:

  base    overrides of every run
  axes    name: {value: overrides}; a cell is one value of each axis. Names and values are those of the
          reference, so that a cell finds the number printed for it
  when    [{axis: value}, overrides] for the cells that agree
  omit    [{axis: value}] combinations the paper does not have either
  left_out  [{fact: value}, reason] for printed numbers that no cell produces
  values  printed metric: ours, a key of summary.json or a rule of derived.py
  table   {rows: [axis, ...], columns: [axis, ...]}
  claims  orderings the paper states
  scales  cpu: {set: overrides, seeds: 1, only: {axis: [values]}, cut: what and why}
"""

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from fedpriv.errors import UserError
from fedpriv.reproduce import reference
from fedpriv.reproduce.reference import Printed

Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "full")
# A smoke run shows that everything fits together, not what comes of it.
SMOKE = ("rounds=1", "local_steps=1")
_KEYS = {"title", "base", "axes", "when", "omit", "left_out", "values", "table", "claims", "scales", "figure"}


@dataclass(frozen=True)
class Cell:
    """One setting of a recipe, without a seed."""

    values: tuple[tuple[str, str], ...]  # axis, value
    overrides: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str]:
        return dict(self.values)

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.values)


@dataclass(frozen=True)
class Claim:
    """At every setting of the other axes, `values` of `axis` come in descending order of accuracy."""

    text: str
    axis: str
    values: tuple[str, ...]
    only: Mapping[str, Any]


class Recipe:
    def __init__(self, name: str, content: Mapping[str, Any]):
        if unknown := set(content) - _KEYS:
            raise ValueError(f"conf/paper/{name}.yaml: unknown keys {sorted(unknown)}")
        self.name = name
        self.paper, _, self.artifact = name.partition("/")
        self.title: str = content["title"]
        self.base = _split(content.get("base"))
        self.axes = {
            axis: {str(value): _split(overrides) for value, overrides in values.items()}
            for axis, values in content["axes"].items()
        }
        self.when = [(_texts(facts), _split(overrides)) for facts, overrides in content.get("when", ())]
        self.omit = [_texts(facts) for facts in content.get("omit", ())]
        self.left_out = [(_texts(facts), str(why)) for facts, why in content.get("left_out", ())]
        self.values: dict[str, str] = dict(content.get("values", {"accuracy": "accuracy_global_last"}))
        self.table: dict[str, list[str]] = content["table"]
        self.claims = [
            Claim(c["text"], c["axis"], tuple(map(str, c["values"])), c.get("only", {}))
            for c in content.get("claims", ())
        ]
        self.scales: dict[str, Any] = content.get("scales", {})
        self.figure: dict[str, Any] | None = content.get("figure")
        shown = [*self.table["rows"], *self.table["columns"]]
        if sorted(shown) != sorted(self.axes):
            raise ValueError(
                f"conf/paper/{name}.yaml: the table shows {shown}, the axes are {list(self.axes)}"
            )

    # -- what is run

    def cells(self, scale: Scale = "full") -> list[Cell]:
        cut = self.scales.get(scale, {})
        only = {axis: set(map(str, values)) for axis, values in cut.get("only", {}).items()}
        found = []
        for chosen in itertools.product(*(values.items() for values in self.axes.values())):
            facts = dict(zip(self.axes, (value for value, _ in chosen), strict=True))
            if any(_agree(facts, rule) for rule in self.omit):
                continue
            if any(facts[axis] not in allowed for axis, allowed in only.items()):
                continue
            overrides = [*self.base, *itertools.chain(*(o for _, o in chosen))]
            for rule, more in self.when:
                if _agree(facts, rule):
                    overrides += more
            overrides += _split(cut.get("set"))
            found.append(Cell(tuple(facts.items()), tuple(_last_wins(overrides))))
        if scale == "smoke":
            cells = found[:1]
            return [Cell(c.values, tuple(_last_wins([*c.overrides, *SMOKE]))) for c in cells]
        return found

    def seeds(self, scale: Scale) -> int:
        """How many seeds, unless the user says."""
        return int(self.scales.get(scale, {}).get("seeds", 1))

    def cut(self, scale: Scale) -> str:
        """What this scale leaves out, in words."""
        return str(self.scales.get(scale, {}).get("cut", ""))

    # -- what was printed

    def printed(self) -> list[Printed]:
        return reference.of(self.paper, self.artifact)

    def beside(self, cell: Cell, metric: str) -> list[Printed]:
        """The numbers printed for a cell; more than one where the paper prints a setting twice."""
        return [p for p in self.printed() if p.metric == metric and p.agrees(cell.facts)]

    def reason(self, number: Printed) -> str | None:
        """Why a printed number is not produced, if it is left out."""
        facts = dict(number.facts) | {"metric": number.metric}
        return next((why for rule, why in self.left_out if _agree(facts, rule)), None)


def _split(overrides: Any) -> tuple[str, ...]:
    return tuple(shlex.split(overrides or ""))


def _texts(facts: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """axis: value or [values], as texts."""
    return {k: tuple(map(str, v)) if isinstance(v, list) else (str(v),) for k, v in facts.items()}


def _agree(facts: Mapping[str, str], rule: Mapping[str, tuple[str, ...]]) -> bool:
    return all(any(reference.same(facts.get(k, ""), v) for v in values) for k, values in rule.items())


def _last_wins(overrides: list[str]) -> Iterator[str]:
    """Hydra refuses a group that is chosen twice; of every key the last override counts."""
    last = {o.partition("=")[0].lstrip("+"): i for i, o in enumerate(overrides)}
    return (o for i, o in enumerate(overrides) if last[o.partition("=")[0].lstrip("+")] == i)


# -- all of them


@cache
def names() -> tuple[str, ...]:
    """Every recipe, as paper/artifact."""
    folder = files("fedpriv.conf").joinpath("paper")
    found = [
        f"{paper.name}/{entry.name[:-5]}"
        for paper in folder.iterdir()
        if paper.is_dir()
        for entry in paper.iterdir()
        if entry.name.endswith(".yaml")
    ]
    return tuple(sorted(found, key=_order))


def _order(name: str) -> tuple:
    paper, _, artifact = name.partition("/")
    letters = artifact.rstrip("0123456789")
    return paper, letters, int(artifact[len(letters) :] or 0)


@cache
def load(name: str) -> Recipe:
    if name not in names():
        known = ", ".join(names())
        raise UserError(f"{name}: no such recipe; choose one of {known}")
    text = files("fedpriv.conf").joinpath("paper", f"{name}.yaml").read_text()
    return Recipe(name, yaml.safe_load(text))


def chosen(which: str) -> list[Recipe]:
    """One recipe, all of a paper, or `all`."""
    if which == "all":
        return [load(n) for n in names()]
    if of_paper := [n for n in names() if n.partition("/")[0] == which]:
        return [load(n) for n in of_paper]
    return [load(which)]
