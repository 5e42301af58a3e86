"""What a group's option can be given.

An option is a YAML file with one `_target_`. The target's signature owns its values: names, types, limits and
defaults are written in one place, where they are used. A file holds what differs from them. `filled` puts the
defaults into a composed config, so that it shows every value.
"""

import copy
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, flag_override

from fedpriv.config.annotations import describe
from fedpriv.config.limits import cut
from fedpriv.config.schema import GROUPS
from fedpriv.config.signatures import Signature, asked, written
from fedpriv.errors import UserError

# What cannot be imported is said in one line, by whoever asks for it.
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)

# What `build` tells models and transforms of the data, besides their options.
INJECTED = {"model": ("shape", "classes", "vocabulary"), "transform": ("shape",)}


def filled(cfg: DictConfig, overrides: Iterable[str] = ()) -> DictConfig:
    """A copy with every value the run has: what an option's file leaves open, its target's signature says.

    `overrides` is what the user typed. If that names another `_target_`, the values of the former option that
    the new target does not have are dropped; but none that was typed, which `check` then refuses.
    """
    typed, whole = keys_of(overrides), copy.deepcopy(cfg)
    with flag_override(whole, ["struct", "readonly"], False):
        for group in GROUPS:
            node = None if group not in whole or OmegaConf.is_missing(whole, group) else whole[group]
            if not isinstance(node, DictConfig):
                continue
            try:
                options = options_of(group, {"_target_": node.get("_target_")})
            except UserError:  # `check` will say what is wrong with it
                continue
            if f"{group}._target_" in typed:
                for key in map(str, list(node)):
                    if key not in (*options, "_target_") and f"{group}.{key}" not in typed:
                        del node[key]
            for key, value in defaults(options).items():
                if key not in node:
                    node[key] = value
    return whole


def keys_of(overrides: Iterable[str]) -> set[str]:
    """The keys that overrides set, of a group's option no deeper than group.key."""
    return {".".join(o.lstrip("+~").partition("=")[0].split(".")[:2]) for o in overrides}


def path_of(group: str, node: Any) -> str:
    """What an option names as its target."""
    path = node.get("_target_") if isinstance(node, dict) else None
    if not path or not isinstance(path, str):
        raise UserError(
            f"{group}={cut(node)}: not an option with a _target_; `fedpriv list {group}` shows them"
        )
    return path


def target_of(group: str, node: Any) -> Callable[..., Any]:
    path = path_of(group, node)
    if not path.startswith("fedpriv.") and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # mine.Trimmed finds ./mine.py, and ./csv.py hides nothing
    try:
        found: Callable[..., Any] = get_object(path)
    except Exception as problem:  # whatever importing somebody's file raises
        raise UserError(f"{group}._target_={cut(path)}: cannot be imported ({_reason(problem)})") from problem
    if not callable(found):
        raise UserError(f"{group}._target_={cut(path)}: cannot be called; name a class or a function")
    return found


def signature_of(group: str, node: Any) -> Signature:
    """What a target takes, of this package's without importing it."""
    path = path_of(group, node)
    if found := written(path):
        return found
    target = target_of(group, node)
    try:
        return asked(target, path)
    except Exception as problem:  # a builtin says nothing of itself, an annotation may name what is not there
        raise UserError(
            f"{group}._target_={cut(path)}: what it can be given is unknown ({_reason(problem)}); "
            "name a class or a function with annotated options"
        ) from problem


def options_of(group: str, node: Any) -> dict[str, inspect.Parameter]:
    """What a target can be given, besides what `build` tells it of the data."""
    injected = INJECTED.get(group, ())
    parameters = signature_of(group, node).parameters
    return {n: p for n, p in parameters.items() if n not in injected and p.kind is not p.VAR_KEYWORD}


def defaults(options: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The default of every option that can be written in a file; an object of a user's own part cannot."""
    return {n: p.default for n, p in options.items() if p.default is not p.empty and _plain(p.default)}


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)


def allowed(group: str, node: dict[str, Any]) -> dict[str, str]:
    """What every value of an option may be, in words."""
    hints = signature_of(group, node).hints
    return {key: describe(hints.get(key, Any)) for key in options_of(group, node)}


def _reason(problem: BaseException) -> str:
    return cut(str(problem) or type(problem).__name__, 200)
