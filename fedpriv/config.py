"""The typed schema: every top-level value, its default, its meaning and what is allowed; and the checks.

Group options (model, dp_variant, ...) are YAML files with one `_target_`; their values are checked against
the target's signature, so an option's type is written in one place: where it is used.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.utils import get_object
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf

from fedpriv.errors import UserError

GROUPS = (
    "dataset", "model", "partition", "transform", "algorithm", "dp_variant", "aggregator", "budget", "upload",
    "stage", "logger",
)  # fmt: skip
# What `build` tells models and transforms of the data, besides their options.
INJECTED = {"model": ("shape", "classes", "vocabulary"), "transform": ("shape",)}


def _setting(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass
class CheckpointSettings:
    every: int = _setting(10, "rounds between checkpoints; 0: only at the end and on Ctrl-C", least=0)


@dataclass
class Settings:
    clients: int = _setting(20, "how many clients there are", least=1)
    rounds: int = _setting(60, "communication rounds", least=1)
    sample_rate: float = _setting(1.0, "share of the clients in a round", above=0, most=1)
    participations: int | None = _setting(
        None, "cross-device: rounds every client takes part in exactly; null: sampled at sample_rate", least=1
    )
    local_epochs: int = _setting(1, "passes over a client's data a round", least=1)
    local_steps: int | None = _setting(None, "local steps a round, instead of local_epochs", least=1)
    batch_size: int = _setting(
        64, "samples a step; under ldp the lot size, batches being drawn at rate 1 / steps a pass", least=1
    )
    lr: float = _setting(0.1, "local learning rate", above=0)
    momentum: float = _setting(0.0, "local momentum", least=0, below=1)
    weight_decay: float = _setting(0.0, "local weight decay", least=0)
    epsilon: float = _setting(8.0, "privacy budget, where the budget group uses it", above=0)
    delta: float = _setting(1e-3, "the delta of every client's (epsilon, delta)", above=0, below=1)
    clip_norm: float = _setting(2.0, "clipping bound of the DP variant", above=0)
    accountant: str = _setting("rdp", "how epsilon is composed", choices=("rdp", "prv", "pld"))
    noise_seed: str = _setting(
        "config",
        "config: noise repeatable from seed; os: from the system, for a release",
        choices=("config", "os"),
    )
    min_clients: int = _setting(1, "training ends when fewer clients can afford a round", least=1)
    seed: int = _setting(0, "seed of everything random", least=0)
    partition_seed: int | None = _setting(
        None, "seed of the partition alone, so that seeds can share one; null: the seed", least=0
    )
    evaluate_every: int = _setting(1, "rounds between evaluations", least=1)
    target: float | None = _setting(
        None, "accuracy on the whole test set: summary.json says when it was reached", above=0, most=1
    )
    samples_at: list[int] = field(
        default_factory=list,
        metadata={
            "help": "rounds after which transformed samples are kept (0: before any): raw data, not private",
            "least": 0,
        },
    )
    device: str = _setting("auto", "where tensors live", choices=("auto", "cpu", "cuda", "mps"))
    dtype: str = _setting("float32", "number format", choices=("float32", "float64"))
    engine: str = _setting("fast", "fast, or the one-client-at-a-time oracle", choices=("fast", "loop"))
    threads: int | None = _setting(None, "worker threads on a CPU; null: one per core", least=1, most=1024)
    data_dir: str | None = _setting(
        "${oc.env:FEDPRIV_DATA,null}", "folder of the data sets; null: the user's cache folder"
    )
    resume: bool = _setting(True, "continue or reuse what the run folder holds; false: start anew")
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    dataset: Any = MISSING
    model: Any = MISSING
    partition: Any = MISSING
    transform: Any = MISSING
    algorithm: Any = MISSING
    dp_variant: Any = MISSING
    aggregator: Any = MISSING
    budget: Any = MISSING
    upload: Any = MISSING
    stage: Any = MISSING
    logger: Any = MISSING


def described(settings: type = Settings, prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every value a user can set at the top level."""
    rows = []
    for f in fields(settings):
        if f.default_factory is CheckpointSettings:
            rows += described(CheckpointSettings, f"{f.name}.")
        elif "help" in f.metadata:
            default = str(f.default_factory() if callable(f.default_factory) else f.default)
            rows.append((prefix + f.name, "null" if default == "None" else default, f.metadata["help"]))
    return rows


def _help() -> str:
    rows = [(k, "FEDPRIV_DATA" if "oc.env" in d else d, h) for k, d, h in described()]
    return "\n".join(f"  {key:<17} {default:<12} {text}" for key, default, text in rows)


def register() -> None:
    """Make the schema and the resolvers known to Hydra; may be called again."""
    ConfigStore.instance().store(name="schema", node=Settings)
    OmegaConf.register_new_resolver("run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("settings_help", _help, replace=True)


# -- names


def _run_name(*, _root_: DictConfig) -> str:
    from fedpriv import identity  # here: it imports torch, which `--help` and completion do without

    choices = _root_.hydra.runtime.choices
    parts = [choices.get(g, "custom") for g in ("dataset", "model", "dp_variant", "aggregator")]
    parts += [f"c{_root_.clients}", f"eps{_root_.epsilon:g}", f"s{_root_.seed}"]
    parts.append(identity.short(identity.of_config(_root_)))
    return "-".join(str(p) for p in parts)


# -- checks


def check(cfg: DictConfig) -> None:
    """Refuse what cannot be run, in one line that names the key, the value and what is allowed."""
    if unknown := sorted(str(k) for k in cfg if k not in {f.name for f in fields(Settings)}):
        raise UserError(
            f"{unknown[0]}={cfg[unknown[0]]}: there is no such key; `fedpriv run --help` lists all"
        )
    check_limits(cfg, Settings, "")
    check_limits(cfg.checkpoint, CheckpointSettings, "checkpoint.")
    if late := [r for r in cfg.samples_at if r > cfg.rounds]:
        raise UserError(
            f"samples_at={cfg.samples_at}: there is no round {late[0]}; choose from 0 to rounds={cfg.rounds}"
        )
    for group in GROUPS:
        _check_group(group, OmegaConf.to_container(cfg[group], resolve=True))


def check_limits(cfg: DictConfig, settings: type, prefix: str) -> None:
    for f in fields(settings):
        if "help" not in f.metadata:
            continue
        given, limit = cfg[f.name], f.metadata
        for value in given if isinstance(given, ListConfig) else [given]:
            if wrong := _outside(value, limit):
                raise UserError(f"{prefix}{f.name}={given}: {wrong} ({limit['help']})")


def _outside(value: Any, limit: Mapping[str, Any]) -> str | None:
    """What a value has to be and is not."""
    if value is None or isinstance(value, bool):
        return None
    if "choices" in limit and value not in limit["choices"]:
        return f"choose one of {', '.join(limit['choices'])}"
    if not isinstance(value, str) and not math.isfinite(value):
        return "must be a finite number"
    if "least" in limit and value < limit["least"]:
        return f"must be at least {limit['least']}"
    if "above" in limit and value <= limit["above"]:
        return f"must be greater than {limit['above']}"
    if "most" in limit and value > limit["most"]:
        return f"must be at most {limit['most']}"
    if "below" in limit and value >= limit["below"]:
        return f"must be less than {limit['below']}"
    return None


def target_of(group: str, node: Any) -> Callable[..., Any]:
    path = node.get("_target_") if isinstance(node, dict) else None
    if not path:
        raise UserError(f"{group}={node}: not an option with a _target_; `fedpriv list {group}` shows them")
    try:
        return get_object(path)
    except Exception as problem:  # whatever importing somebody's file raises
        reason = str(problem).splitlines()[0]
        raise UserError(f"{group}._target_={path}: cannot be imported ({reason})") from problem


def _check_group(group: str, node: Any) -> None:
    target = target_of(group, node)
    signature = inspect.signature(target)
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    options = {
        n: p
        for n, p in signature.parameters.items()
        if n not in INJECTED.get(group, ()) and p.kind is not p.VAR_KEYWORD
    }
    given = {k: v for k, v in node.items() if k != "_target_"}
    for key, value in given.items():
        if key not in options:
            known = ", ".join(options) or "no options"
            raise UserError(f"{group}.{key}={value}: no such option of {target.__name__}; it has {known}")
        if key in hints and not _fits(value, hints[key]):
            raise UserError(f"{group}.{key}={value}: must be {_describe(hints[key])}")
    for key, parameter in options.items():
        if parameter.default is parameter.empty and key not in given:
            raise UserError(f"{group}.{key} is missing: {target.__name__} needs it")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if hint in (None, type(None)):
        return value is None
    if origin in (list, tuple):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list | tuple) and all(_fits(v, inner) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    if origin in (list, tuple):
        return "a list, each " + _describe(arguments[0] if arguments else Any)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "null",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))
