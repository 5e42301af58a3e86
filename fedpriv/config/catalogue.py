"""`fedpriv list`: every group and option with the first line of its YAML file, and what its values mean.

The file of an option begins with comments: what it is, then `#   key: meaning` for values that need a word.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from fedpriv.config.composing import expand, without_config_dir
from fedpriv.config.options import allowed, defaults, options_of, target_of
from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.session.screen import console

HELP = """\
usage: fedpriv list [group ...] [--config-dir FOLDER]

Every group and its options: what each is, which paper it comes from. With a group also every value of its
options: the default, what it means, what is allowed. --config-dir adds your own options.
"""
MEANING = {
    "dataset": "arrays, sizes, normalisation",
    "model": "the network",
    "partition": "who owns which sample, train and test alike",
    "transform": "the personal layer in front, kept at home",
    "algorithm": "local objective, and how far to go",
    "dp_variant": "clipping, noise and what it guarantees (short: dp=)",
    "aggregator": "how uploads become one update (short: agg=)",
    "budget": "each client's epsilon",
    "upload": "what crosses the wire, in bytes",
    "server": "the server's step",
    "stage": "what runs once before round 0",
    "logger": "where results go besides the run folder",
}


def options(group: str, config_dir: str | Path | None = None) -> dict[str, str]:
    """Name and description (the first comment that is not a Hydra directive) of every option; with
    `config_dir` also of the user's own."""
    found = {}
    for name, text in _files(group, config_dir):
        lines = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
        found[name] = next((line for line in lines if not line.startswith("@package")), "")
    return dict(sorted(found.items()))


def meanings(text: str) -> dict[str, str]:
    """What the comments of an option's file say of its values."""
    return dict(re.findall(r"^#   (\w+): (.*)$", text, re.MULTILINE))


def _files(group: str, config_dir: str | Path | None = None) -> Iterator[tuple[str, str]]:
    """Name and text of every option; where two have a name, ours is the one that is composed."""
    own = Path(config_dir) / group if config_dir else None
    for folder in (own, files("fedpriv.conf").joinpath(group)):
        for entry in folder.iterdir() if folder is not None and folder.is_dir() else ():
            if entry.name.endswith(".yaml"):
                yield entry.name[: -len(".yaml")], entry.read_text()


def option_of(group: str, node: dict[str, Any]) -> str:
    """The name of the option a composed config holds: the file that agrees with it in most values.

    A part of one's own, which no file describes, goes by the last word of its target.
    """
    found = {
        name: sum(1 if node.get(k) == v else -1 for k, v in content.items() if not str(v).startswith("${"))
        for name, content in written(group).items()
        if content["_target_"] == node["_target_"]
    }
    return max(found, key=lambda n: found[n]) if found else str(node["_target_"]).rpartition(".")[2]


@cache
def written(group: str, config_dir: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """What the file of every option says, interpolations as they are written; imports no target."""
    found = {}
    for name, text in sorted(_files(group, config_dir)):
        content = yaml.safe_load(text)
        found[name] = content.get(group, content)
    return found


@cache
def contents(group: str, config_dir: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """Every value of every option: what its file says, interpolations as they are written, and the defaults
    of its target."""
    return {
        name: {"_target_": content["_target_"], **defaults(options_of(group, content)), **content}
        for name, content in written(group, config_dir).items()
    }


@cache
def targets(group: str) -> dict[str, Callable[..., Any]]:
    """The class or function of every option."""
    return {name: target_of(group, content) for name, content in contents(group).items()}


def show(arguments: list[str]) -> None:
    given, config_dir = without_config_dir(arguments)
    groups = [expand(group) for group in given]
    for group in groups or GROUPS:
        if group not in GROUPS:
            raise UserError(f"{group}: no such group; choose one of {', '.join(GROUPS)}")
        table = Table(title=f"{group}: {MEANING[group]}", title_justify="left", show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in options(group, config_dir).items():
            table.add_row(name, text)
        console.print(table)
        if group in groups:
            _show_values(group, config_dir)


def _show_values(group: str, config_dir: str | Path | None) -> None:
    """What every value of every option is, means and may be."""
    texts = dict(_files(group, config_dir))
    for name, content in contents(group, config_dir).items():
        said = meanings(texts[name])
        for key, words in allowed(group, content).items():
            value = content.get(key)
            shown = list(value) if isinstance(value, tuple) else value
            meaning = f"{said[key]} ({words})" if key in said else words
            console.print(f"{name}.{key}={shown}: {meaning}", soft_wrap=True)
