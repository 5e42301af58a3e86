"""A recipe: how one published table or figure is rebuilt (conf/paper/<paper>/<artifact>.yaml).

It holds overrides of `fedpriv run` and the sweep over them, and no copy of a default:

  base    overrides of every run
  axes    name: {value: overrides}; a cell is one value of each axis. Names and values are those of the
          reference, so that a cell finds the number printed for it
  when    [{axis: value}, overrides] for the cells that agree
  omit    [{axis: value}] combinations the paper does not have either
  values  printed metric: ours, a key of summary.json or a rule of rules.py
  also    artifacts, such as sections of the text, or {fact: value}, whose numbers are about these cells
  read    [{fact: value}, {fact: value}] what a printed number says in the words of this recipe: the facts it
          leaves open, `stat` over several cells, `against` {axis: value, or {own: other}} for a difference
  left_out  [{fact: value}, reason] for printed numbers that no cell produces
  table   {rows: [axis, ...], columns: [axis, ...]}
  notes   what came of it, in words, by someone who looked at the numbers; stands below the table
  figure  {x: axis, "round" or a number of ours, y: a number of ours, line: axis, panel: [axis, ...]}
  claims  orderings the paper states: {text, axis, values, only, metric}, the largest first
  scales  cpu: {set: overrides, when, omit: as above, seeds: 1, only: {axis: [values]}, cut: what and why}

An axis named `reading` holds what a paper can be taken to mean where its text and its authors' code differ.
The first reading is ours: printed numbers and claims belong to it; the others stand beside it in the table.

Among the facts of a printed number are its artifact and its metric. What no recipe answers, and why, is in
conf/paper/left_out.yaml.
"""

import difflib
import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from fedpriv.config.composing import expand
from fedpriv.config.limits import cut
from fedpriv.errors import UserError
from fedpriv.reproduce import reference, sound
from fedpriv.reproduce.reference import Printed

Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "full")
# A smoke run shows that everything fits together, not what comes of it.
SMOKE = ("rounds=1", "local_steps=1")
READING = "reading"
Rule = dict[str, tuple[str, ...]]  # fact or axis: allowed values


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
    """At every setting of the other axes, `values` of `axis` come in descending order of `metric`."""

    text: str
    axis: str
    values: tuple[str, ...]
    only: Mapping[str, Any]
    metric: str = "accuracy"


class Recipe:
    def __init__(self, name: str, content: Mapping[str, Any]):
        self.name = name
        try:
            sound.check_shape(content, SCALES)
            self._take(content)
            sound.check(self)
        except ValueError as problem:
            raise ValueError(f"conf/paper/{name}.yaml: {problem}") from problem

    def _take(self, content: Mapping[str, Any]) -> None:
        self.paper, _, self.artifact = self.name.partition("/")
        self.title: str = content["title"]
        self.base = _split(content.get("base"))
        self.axes = {
            axis: {str(value): _split(overrides) for value, overrides in values.items()}
            for axis, values in content["axes"].items()
        }
        self.when = _rules(content.get("when", ()))
        self.omit = [_texts(facts) for facts in content.get("omit", ())]
        self.left_out = [(_texts(facts), str(why)) for facts, why in content.get("left_out", ())]
        also = [a if isinstance(a, dict) else {"artifact": a} for a in content.get("also", ())]
        self.also = [_texts(facts) for facts in also]
        self.read = [(_texts(facts), dict(more)) for facts, more in content.get("read", ())]
        self.values: dict[str, str] = dict(content.get("values", {"accuracy": "accuracy_global_last"}))
        self.table: dict[str, list[str]] = content["table"]
        self.claims = [
            Claim(c["text"], c["axis"], self._spelt(c["axis"], c["values"]), c.get("only", {}), *_metric(c))
            for c in content.get("claims", ())
        ]
        self.scales: dict[str, Any] = content.get("scales", {})
        self.figure: dict[str, Any] | None = content.get("figure")
        self.notes: str = " ".join(content.get("notes", "").split())

    def _spelt(self, axis: str, values: Iterable[Any]) -> tuple[str, ...]:
        """Values as the axis writes them: 8 may be its 8.0."""
        known = self.axes.get(axis, {})
        return tuple(next((own for own in known if reference.same(own, str(v))), str(v)) for v in values)

    @property
    def readings(self) -> list[str]:
        """Ours first, then those beside it; none where a paper can be read in one way only."""
        return list(self.axes.get(READING, ()))

    def rules(self) -> list[Rule]:
        """Every choice of axes and values that it makes."""
        scales = self.scales.values()
        cuts = [_texts(cut) for s in scales for cut in (s.get("only", {}), *s.get("omit", ()))]
        more = [rule for s in scales for rule, _ in _rules(s.get("when", ()))]
        claimed = [_texts(c.only) | {c.axis: c.values} for c in self.claims]
        return [*(rule for rule, _ in self.when), *self.omit, *cuts, *more, *claimed]

    # -- what is run

    def cells(self, scale: Scale = "full", only: Rule | None = None) -> list[Cell]:
        """The settings of a scale, of those that agree with `only`."""
        cut = self.scales.get(scale, {})
        kept = {axis: set(self._spelt(axis, values)) for axis, values in cut.get("only", {}).items()}
        found = []
        for chosen in itertools.product(*(values.items() for values in self.axes.values())):
            facts = dict(zip(self.axes, (value for value, _ in chosen), strict=True))
            if any(_agree(facts, rule) for rule in (*self.omit, *map(_texts, cut.get("omit", ())))):
                continue
            if not _agree(facts, only or {}):
                continue
            if any(facts[axis] not in allowed for axis, allowed in kept.items()):
                continue
            overrides = [*self.base, *itertools.chain(*(o for _, o in chosen))]
            overrides += _where(facts, self.when)
            overrides += [*_split(cut.get("set")), *_where(facts, _rules(cut.get("when", ())))]
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
        """The numbers of this artifact, then those quoted elsewhere, in the words of the recipe."""
        own = reference.of(self.paper, self.artifact)
        quoted = [
            p for p in reference.of(self.paper) if p not in own and any(_about(p, rule) for rule in self.also)
        ]
        return [self._read(number) for number in (*own, *quoted)]

    def _read(self, number: Printed) -> Printed:
        facts, metric, against = dict(number.facts), number.metric, number.against
        if self.readings:
            facts[READING] = self.readings[0]
        for rule, more in self.read:
            if _about(number, rule):
                more = dict(more)
                metric, against = more.pop("metric", metric), more.pop("against", against)
                facts |= {k: "|".join(v) for k, v in _texts(more).items()}
        return replace(number, facts=tuple(facts.items()), metric=metric, against=against)

    def reason(self, number: Printed) -> str | None:
        """Why a printed number is not produced, if it is left out."""
        return next((why for rule, why in self.left_out if _about(number, rule)), None)


def _about(number: Printed, rule: Rule) -> bool:
    return _agree(dict(number.facts) | {"artifact": number.artifact, "metric": number.metric}, rule)


def _metric(claim: Mapping[str, Any]) -> tuple[str, ...]:
    return (claim["metric"],) if "metric" in claim else ()


def _rules(content: Any) -> list[tuple[Rule, tuple[str, ...]]]:
    if any(not isinstance(each, list) or len(each) != 2 for each in content):
        raise ValueError("a rule of `when` is a list of two: [{axis: value}, overrides]")
    return [(_texts(facts), _split(overrides)) for facts, overrides in content]


def _where(facts: Mapping[str, str], rules: list[tuple[Rule, tuple[str, ...]]]) -> list[str]:
    return [o for rule, overrides in rules if _agree(facts, rule) for o in overrides]


def _split(overrides: Any) -> tuple[str, ...]:
    if not isinstance(overrides, str | None):
        raise ValueError(f"overrides are one text of key=value, not {cut(overrides)}")
    return tuple(shlex.split(overrides or ""))


def _texts(facts: Mapping[str, Any]) -> Rule:
    """axis: value or [values], as texts."""
    return {k: tuple(map(str, v)) if isinstance(v, list | tuple) else (str(v),) for k, v in facts.items()}


def _agree(facts: Mapping[str, str], rule: Rule) -> bool:
    return all(any(reference.same(facts.get(k, ""), v) for v in values) for k, values in rule.items())


def _last_wins(overrides: list[str]) -> list[str]:
    """Of every key the last override counts; choosing an option drops what was set of an earlier one."""
    kept: dict[str, str] = {}
    for override in overrides:
        key = expand(override.partition("=")[0])
        kept = {k: o for k, o in kept.items() if k != key and not k.startswith(f"{key}.")}
        kept[key] = override
    return list(kept.values())


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


def _order(name: str) -> tuple[str, str, int]:
    paper, _, artifact = name.partition("/")
    letters = artifact.rstrip("0123456789")
    return paper, letters, int(artifact[len(letters) :] or 0)


@cache
def load(name: str) -> Recipe:
    if name not in names():
        own = [n for n in names() if n.startswith(f"{name.partition('/')[0]}/")]
        near = difflib.get_close_matches(name, names(), n=3) or own
        known = f"did you mean {', '.join(near)}?" if near else "`fedpriv reproduce --help` lists them"
        raise UserError(f"{name}: no such recipe or folder; {known}")
    text = files("fedpriv.conf").joinpath("paper", f"{name}.yaml").read_text()
    return Recipe(name, sound.loaded(text))


@dataclass(frozen=True)
class LeftOut:
    """Something published that no recipe rebuilds."""

    paper: str
    artifact: str
    only: Rule  # facts of the numbers meant; empty: all
    reason: str

    def about(self, number: Printed) -> bool:
        return (number.paper, number.artifact) == (self.paper, self.artifact) and _about(number, self.only)


@cache
def left_out() -> tuple[LeftOut, ...]:
    entries = yaml.safe_load(files("fedpriv.conf").joinpath("paper", "left_out.yaml").read_text())
    return tuple(
        LeftOut(paper, artifact, _texts(entry.get("only", {})), entry["reason"])
        for entry in entries
        for paper, artifact in (name.split("/") for name in entry["artifacts"])
    )


def values_of(those: list[Recipe], axis: str, text: str) -> tuple[str, ...]:
    """What `--only` names: one value, though it may be a list of budgets, or several."""
    several = tuple(text.split(","))
    whole = any(reference.same(text, own) for r in those for own in r.axes.get(axis, ()))
    # What names a value twice is a list that there is not.
    return (text,) if whole or len(set(several)) < len(several) else several


def having(those: list[Recipe], only: Rule) -> list[Recipe]:
    """The recipes with these axes and values; refuses what none of them has."""
    for axis, values in only.items():
        for value in values:
            if not any(reference.same(value, own) for r in those for own in r.axes.get(axis, ())):
                axes = {a: list(v) for r in those for a, v in r.axes.items()}
                known = ", ".join(axes.get(axis, axes))
                missing = "value" if axis in axes else "axis"
                asked = f"{axis}={value}" if value else axis
                raise UserError(f"--only {asked}: no such {missing}; choose of {known}")
    if not (found := [r for r in those if set(only) <= set(r.axes)]):
        raise UserError(
            f"--only {' and '.join(only)}: no recipe has all of these axes; ask for one at a time"
        )
    return found


def own(which: str) -> Path | None:
    """The file, where a recipe of one's own is named: ./mine.yaml."""
    return Path(which) if which.endswith((".yaml", ".yml")) else None


def of_file(path: Path) -> Recipe:
    """A recipe of one's own; no printed numbers are needed."""
    name = f"own/{path.stem}"
    try:
        return Recipe(name, sound.loaded(path.read_text()))
    except OSError as problem:
        raise UserError(f"{path}: cannot be read ({problem.strerror})") from problem
    except Exception as problem:  # whatever a file that is no recipe makes its reader raise
        reason = f"{problem.args[0]} is missing" if isinstance(problem, KeyError) else str(problem)
        reason = cut(" ".join(reason.removeprefix(f"conf/paper/{name}.yaml: ").split()), 200)
        raise UserError(
            f"{path}: no sound recipe ({reason}); conf/paper/README.md has an example"
        ) from problem


def chosen(which: str) -> list[Recipe]:
    """One recipe, all of a paper, `all`, or one of the user's own."""
    if path := own(which):
        return [of_file(path)]
    if which == "all":
        return [load(n) for n in names()]
    if of_paper := [n for n in names() if n.partition("/")[0] == which]:
        return [load(n) for n in of_paper]
    return [load(which)]
