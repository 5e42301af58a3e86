"""From an option of a group to the object it describes; imports what that option's module does, no more."""

import inspect
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedpriv.config.limits import cut
from fedpriv.config.options import INJECTED, target_of
from fedpriv.datasets.base import default_data_dir
from fedpriv.errors import UserError

# What the parts of a group are called by: a _target_ that gives something else is refused.
METHODS = {
    "dataset": ("load",),
    "model": ("forward", "named_parameters"),
    "partition": ("split",),
    "transform": ("forward", "named_parameters"),
    "algorithm": ("setup", "message", "move"),
    "dp_variant": ("setup", "calibrate", "client", "server"),
    "aggregator": ("setup", "accepts", "__call__"),
    "budget": ("__call__",),
    "upload": ("setup", "encode", "decode"),
    "server": ("setup", "step"),
    "stage": ("announce", "prepare", "mix"),
    "logger": ("start", "log", "finish"),
}


def make(cfg: DictConfig, group: str, **facts: Any) -> Any:
    """Instantiate a group's option with its values; of the facts, those it asks for."""
    node = OmegaConf.to_container(cfg[group], resolve=True)
    target = target_of(group, node)
    wanted = set(inspect.signature(target).parameters) & set(INJECTED.get(group, ()))
    assert isinstance(node, dict)
    options = {str(k): v for k, v in node.items() if k != "_target_"}
    name = getattr(target, "__name__", str(node["_target_"]))
    try:
        made = target(**{k: v for k, v in facts.items() if k in wanted}, **options)
    except UserError:
        raise
    except Exception as problem:  # such as a layer of width zero: whatever the part raises
        given = ", ".join(f"{k}={cut(v)}" for k, v in options.items())
        reason = cut(f"{type(problem).__name__}: {problem}".splitlines()[0], 200)
        raise UserError(f"{group}: {name} cannot be made with {given} ({reason})") from problem
    if lacking := [m for m in METHODS[group] if not callable(getattr(made, m, None))]:
        raise UserError(
            f"{group}._target_={cut(node['_target_'])}: gives {type(made).__name__}, which has no "
            f"{lacking[0]}; name a part for {group}"
        )
    return made


def source(cfg: DictConfig) -> tuple[Any, Path]:
    """The data set, not loaded, and the folder it is loaded from."""
    return make(cfg, "dataset"), Path(cfg.data_dir) if cfg.data_dir else default_data_dir()
