"""`fedpriv list`: every group and option with the first line of its YAML file."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from rich.table import Table

from fedpriv.config import GROUPS, allowed
from fedpriv.errors import UserError
from fedpriv.screen import console

MEANING = {
    "dataset": "arrays, sizes, normalisation",
    "model": "the network",
    "partition": "who owns which sample, train and test alike",
    "transform": "the personal layer in front, kept at home",
    "algorithm": "local objective and server step",
    "dp_variant": "clipping, noise and what it guarantees (short: dp=)",
    "aggregator": "how uploads become one update (short: agg=)",
    "budget": "each client's epsilon",
    "upload": "what crosses the wire, in bytes",
    "stage": "what runs once before round 0",
    "logger": "where results go besides the run folder",
}


def options(group: str) -> dict[str, str]:
    """Name and description (the first comment that is not a Hydra directive) of every option."""
    found = {}
    for entry in files("fedpriv.conf").joinpath(group).iterdir():
        if entry.name.endswith(".yaml"):
            lines = [line.lstrip("# ") for line in entry.read_text().splitlines()]
            described = next(line for line in lines if not line.startswith("@package"))
            found[entry.name[: -len(".yaml")]] = described
    return dict(sorted(found.items()))


def option_of(group: str, node: dict[str, Any]) -> str:
    """The name of the option a composed config holds: the file that agrees with it in most values.

    A part of one's own, which no file describes, goes by the last word of its target.
    """
    found = {
        name: sum(node.get(k) == v for k, v in content.items())
        for name, content in contents(group).items()
        if content["_target_"] == node["_target_"]
    }
    return max(found, key=lambda n: found[n]) if found else str(node["_target_"]).rpartition(".")[2]


@cache
def contents(group: str) -> dict[str, dict[str, Any]]:
    """What the file of every option says, interpolations as they are written."""
    folder = files("fedpriv.conf").joinpath(group)
    parsed = {n: yaml.safe_load(folder.joinpath(f"{n}.yaml").read_text()) for n in options(group)}
    return {name: content.get(group, content) for name, content in parsed.items()}


def show(groups: list[str]) -> None:
    for group in groups or GROUPS:
        if group not in GROUPS:
            raise UserError(f"{group}: no such group; choose one of {', '.join(GROUPS)}")
        table = Table(title=f"{group}: {MEANING[group]}", title_justify="left", show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in options(group).items():
            table.add_row(name, text)
        console.print(table)
        if group in groups:
            for name in options(group):
                _show_values(group, name)


def _show_values(group: str, name: str) -> None:
    """What every value of an option may be."""
    content = contents(group)[name]
    for key, words in allowed(group, content).items():
        console.print(f"{name}.{key}={content.get(key)}: {words}", soft_wrap=True)
