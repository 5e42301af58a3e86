"""Refuse a recipe that cannot be run or shown, with the key that is wrong and what it may be."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from fedpriv.config.limits import cut
from fedpriv.reproduce.reference import same

if TYPE_CHECKING:
    from fedpriv.reproduce.recipe import Recipe

_KEYS = {
    "title", "base", "axes", "when", "omit", "values", "also", "read", "left_out", "table", "figure",
    "claims", "scales", "notes",
}  # fmt: skip
_KINDS = {
    "title": str, "axes": dict, "table": dict, "values": dict, "figure": dict, "scales": dict, "notes": str,
    "claims": list, "when": list, "omit": list,
}  # fmt: skip
_CALLED = {str: "a text", dict: "a list of `name: value`", list: "a list, each line with a `-`"}
_CLAIM = {"text", "axis", "values", "only", "metric"}
_FIGURE = {"x", "y", "line", "panel"}
_SCALE = {"set", "when", "omit", "seeds", "only", "cut"}


class _Strict(yaml.SafeLoader):  # type: ignore[misc]
    """A key that stands twice would hide the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                _wrong(f"{cut(name)} stands twice in line {key.start_mark.line + 1} or above; rename one")
            seen.append(name)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def loaded(text: str) -> Any:
    return yaml.load(text, _Strict)


def check_shape(content: Any, scales: Iterable[str]) -> None:
    """A mapping of the known keys to the kinds of values that they have."""
    if not isinstance(content, dict):
        _wrong("it is no list of `key: value`")
    _check_keys("", content, _KEYS)
    for key, kind in _KINDS.items():
        if not isinstance(content.get(key, kind()), kind):
            _wrong(f"{key} must be {_CALLED[kind]}")
    for key in ("rows", "columns"):
        if "table" in content and not isinstance(content["table"].get(key), list):
            _wrong(f"table: {key} must be axes in brackets")
    _check_keys("table: ", content.get("table", {}), {"rows", "columns"})
    for axis, values in content.get("axes", {}).items():
        if not isinstance(values, dict) or not values:
            _wrong(f"axes: {axis} must have values, each `name: overrides`")
        if axis in (taken := reserved()):
            _wrong(f"axes: {axis} is a column of every result, as are {', '.join(taken)}; call it otherwise")
        for value in values:
            if isinstance(value, bool | None):
                _wrong(f"axes: {axis}: YAML takes a bare {value} for no text; put quotes around its name")
    for claim in content.get("claims", ()):
        if not isinstance(claim, dict):
            _wrong(f"claims: {cut(claim)} is no {{text, axis, values}}")
        _check_keys("claims: ", claim, _CLAIM)
        values = claim.get("values")
        if not isinstance(values, list) or len(values) < 2:
            _wrong(f"claims: {cut(claim.get('text', ''))}: values must be two or more, the largest first")
    _check_keys("scales: ", content.get("scales", {}), scales)
    for scale, cuts in content.get("scales", {}).items():
        if not isinstance(cuts, dict):
            _wrong(f"scales: {scale} must be a list of `name: value`; {{}} where nothing is cut")
        _check_keys(f"scales: {scale}: ", cuts, _SCALE)
        seeds = cuts.get("seeds", 1)
        if not isinstance(seeds, int) or seeds < 1:
            _wrong(f"scales: {scale}: seeds: {cut(seeds)} is no whole number of at least 1")


def check(recipe: "Recipe") -> None:
    """No axis or value that is not among the axes, no number that nobody measures."""
    shown = [*recipe.table["rows"], *recipe.table["columns"]]
    if sorted(shown) != sorted(recipe.axes):
        _wrong(f"the table shows {shown}, the axes are {list(recipe.axes)}")
    for rule in recipe.rules():
        for axis, values in rule.items():
            unknown = [v for v in values if not any(same(v, own) for own in recipe.axes.get(axis, ()))]
            if axis not in recipe.axes or unknown:
                _wrong(f"no axis {axis} with {', '.join(unknown)}")
    if not (cells := recipe.cells()):
        _wrong("omit leaves no cell")
    if any(override.partition("=")[0] == "seed" for cell in cells for override in cell.overrides):
        _wrong("seed is set for every run by `--seeds` or scales; leave it out")
    _check_numbers(recipe)
    if recipe.figure:
        _check_figure(recipe, recipe.figure)


def _check_numbers(recipe: "Recipe") -> None:
    known = _numbers()
    for metric, ours in recipe.values.items():
        if ours not in known:
            _wrong(f"values: {metric}: there is no {cut(ours)}; there are {', '.join(known)}")
    for claim in recipe.claims:
        if claim.metric not in recipe.values:
            _wrong(f"claims: there is no metric {cut(claim.metric)}; values has {', '.join(recipe.values)}")


def _check_figure(recipe: "Recipe", figure: Mapping[str, Any]) -> None:
    _check_keys("figure: ", figure, _FIGURE)
    if "x" not in figure:
        _wrong("figure: x is missing; name round, an axis or a number")
    x, y, lines = figure["x"], figure.get("y", "accuracy"), figure.get("line", [])
    drawn = [*([lines] if isinstance(lines, str) else lines), *figure.get("panel", ())]
    known = {
        "x": ("round", *recipe.axes, *_numbers()),
        "y": ("accuracy", *recipe.values, *_numbers()),
        "line and panel": tuple(recipe.axes),
    }
    for key, given in (("x", [x]), ("y", [y]), ("line and panel", drawn)):
        if unknown := [cut(g) for g in given if g not in known[key]]:
            _wrong(f"figure: {key}: there is no {unknown[0]}; there are {', '.join(known[key])}")
    if x == "round" and "y" in figure:
        _wrong(f"figure: over rounds there is accuracy only, no {y}")
    mixed = [axis for axis, values in recipe.axes.items() if len(values) > 1 and axis not in (x, *drawn)]
    if mixed and x in ("round", *recipe.axes):  # over a measured number every cell is a point
        _wrong(f"figure: one line would be drawn through every {mixed[0]}; name it in line or panel")


def _numbers() -> tuple[str, ...]:
    """What is measured of a run, and what rules make of it."""
    from fedpriv.reproduce.rows import MEASURED
    from fedpriv.reproduce.rules import RULES

    return (*MEASURED, *RULES)


def reserved() -> tuple[str, ...]:
    """What the rows of results call their own columns of numbers."""
    from fedpriv.reproduce.rows import CURVE, MEASURED

    return ("identity", "seed", "scale", *MEASURED, CURVE)


def _check_keys(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in sorted(map(str, set(given) - set(known))):
        near = difflib.get_close_matches(key, known, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        _wrong(f"{where}unknown key {cut(key)}; {meant}")


def _wrong(what: str) -> NoReturn:
    raise ValueError(what)
