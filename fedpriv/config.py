"""The typed schema: every top-level value, its default, its meaning and what is allowed; and the checks.

Group options (model, dp_variant, ...) are YAML files with one `_target_`. The target's signature owns their
values: names, types, limits and defaults are written in one place, where they are used. A file holds what
differs from them. `filled` puts the defaults into a composed config, so that it shows every value.
"""

import copy
import difflib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf, flag_override

from fedpriv.errors import UserError
from fedpriv.limits import ANY, LONGEST, MOST, WHOLE, Within, cut

GROUPS = (
    "dataset", "model", "partition", "transform", "algorithm", "dp_variant", "aggregator", "budget", "upload",
    "stage", "logger",
)  # fmt: skip
# What `build` tells models and transforms of the data, besides their options.
INJECTED = {"model": ("shape", "classes", "vocabulary"), "transform": ("shape",)}
MEMORY_ROWS = 10**9  # rows of clients.csv, one a client and round
_LISTED = 100_000  # values of a list


def _setting(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass
class CheckpointSettings:
    every: int = _setting(
        10, "rounds between checkpoints; 0: only at the end and on Ctrl-C", least=0, most=1_000_000
    )


@dataclass
class Settings:
    clients: int = _setting(20, "how many clients there are", least=1, most=1_000_000)
    rounds: int = _setting(60, "communication rounds", least=1, most=1_000_000)
    sample_rate: float = _setting(1.0, "share of the clients in a round", above=0, most=1)
    participations: int | None = _setting(
        None,
        "cross-device: rounds every client takes part in exactly; null: sampled at sample_rate",
        least=1,
        most=1_000_000,
    )
    local_epochs: int = _setting(1, "passes over a client's data a round", least=1, most=10_000)
    local_steps: int | None = _setting(
        None, "local steps a round, instead of local_epochs", least=1, most=1_000_000
    )
    batch_size: int = _setting(
        64,
        "samples a step; under ldp the lot size, batches being drawn at rate 1 / steps a pass",
        least=1,
        most=1_000_000,
    )
    lr: float = _setting(0.1, "local learning rate", above=0, most=1e6)
    momentum: float = _setting(0.0, "local momentum", least=0, below=1)
    weight_decay: float = _setting(0.0, "local weight decay", least=0, most=1e6)
    epsilon: float = _setting(8.0, "privacy budget, where the budget group uses it", least=1e-4, most=1e6)
    delta: float = _setting(1e-3, "the delta of every client's (epsilon, delta)", least=1e-30, below=1)
    clip_norm: float = _setting(2.0, "clipping bound of the DP variant", least=1e-9, most=1e9)
    accountant: str = _setting("rdp", "how epsilon is composed", choices=("rdp", "prv", "pld"))
    noise_seed: str = _setting(
        "config",
        "config: noise repeatable from seed; os: from the system, for a release",
        choices=("config", "os"),
    )
    min_clients: int = _setting(
        1, "training ends when fewer clients can afford a round", least=1, most=1_000_000
    )
    seed: int = _setting(0, "seed of everything random", least=0, most=2**63 - 1)
    partition_seed: int | None = _setting(
        None,
        "seed of the partition alone, so that seeds can share one; null: the seed",
        least=0,
        most=2**63 - 1,
    )
    evaluate_every: int = _setting(1, "rounds between evaluations", least=1, most=1_000_000)
    target: float | None = _setting(
        None, "accuracy on the whole test set: summary.json says when it was reached", above=0, most=1
    )
    samples_at: list[int] = field(
        default_factory=list,
        metadata={
            "help": "rounds after which transformed samples are kept (0: before any): raw data, not private",
            "least": 0,
            "most": 1_000_000,
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
    """(key, default, meaning and limits) of every value a user can set at the top level."""
    rows = []
    for f in fields(settings):
        if f.default_factory is CheckpointSettings:
            rows += described(CheckpointSettings, f"{f.name}.")
        elif "help" in f.metadata:
            default = str(f.default_factory() if callable(f.default_factory) else f.default)
            words = _within(f.metadata).words()
            text = f.metadata["help"] + (f" ({words})" if words else "")
            rows.append((prefix + f.name, "null" if default == "None" else default, text))
    return rows


def _within(metadata: Mapping[str, Any]) -> Within:
    return Within(
        **{name: metadata[name] for name in ("least", "above", "most", "below") if name in metadata}
    )


def _help() -> str:
    rows = [(k, "FEDPRIV_DATA" if "oc.env" in d else d, h) for k, d, h in described()]
    numbers = f"every other number: {ANY.words()}; every other whole number: {WHOLE.words()}"
    return "\n".join([*(f"  {key:<17} {default:<12} {text}" for key, default, text in rows), f"  {numbers}"])


def register() -> None:
    """Make the schema and the resolvers known to Hydra; may be called again."""
    ConfigStore.instance().store(name="schema", node=Settings)
    OmegaConf.register_new_resolver("run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("settings_help", _help, replace=True)
    OmegaConf.register_new_resolver("groups_help", _groups_help, replace=True)
    OmegaConf.register_new_resolver("config_help", _config_help, replace=True)


def _groups_help() -> str:
    """Every group and its options, the user's own too. Not conf/paper, which holds recipes."""
    loader = GlobalHydra.instance().config_loader()
    return "\n".join(f"  {group}: {', '.join(loader.get_group_options(group))}" for group in sorted(GROUPS))


def _config_help(*, _root_: DictConfig) -> str:
    return OmegaConf.to_yaml(job_of(_root_)).replace("$", "$$")  # of a template


def job_of(whole: DictConfig) -> DictConfig:
    """Of a config with Hydra's own values in it, what the run is told: every value."""
    job = filled(whole, whole.hydra.overrides.task)
    with flag_override(job, ["struct", "readonly"], False):
        del job["hydra"]
    return job


# -- names


def _run_name(*, _root_: DictConfig) -> str:
    """Hydra names the folder before anything is run: what is no number is refused here, not in a name."""
    from fedpriv import identity  # here: it imports torch, which completion does without

    _check_references(_root_)
    _check_keys(_root_)
    cfg = job_of(_root_)
    for group in GROUPS:
        _check_names(group, cfg[group])
    parts = part_names(cfg, _root_.hydra.runtime.choices, _root_.hydra.overrides.task)
    parts += [f"c{cfg.clients}", f"eps{cfg.epsilon:g}", f"s{cfg.seed}"]
    parts.append(identity.short(identity.of_config(cfg)))
    return "-".join(parts)


def part_names(cfg: DictConfig, choices: Mapping[str, str], overrides: Iterable[str]) -> list[str]:
    """What data set, model, DP variant and aggregator are called: the option chosen, or the class named."""
    typed, found = keys_of(overrides), []
    for group in ("dataset", "model", "dp_variant", "aggregator"):
        chosen = None if f"{group}._target_" in typed else choices.get(group)
        found.append(re.sub(r"[^\w.-]", "_", chosen or str(cfg[group]["_target_"]).rpartition(".")[2])[:60])
    return found


def keys_of(overrides: Iterable[str]) -> set[str]:
    """The keys that overrides set, of a group's option no deeper than group.key."""
    return {".".join(o.lstrip("+~").partition("=")[0].split(".")[:2]) for o in overrides}


# -- defaults


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


def options_of(group: str, node: Any) -> dict[str, inspect.Parameter]:
    """What a target can be given, besides what `build` tells it of the data."""
    target = target_of(group, node)
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError) as problem:  # a builtin says nothing of itself
        raise _unknown_options(group, node, problem) from problem
    injected = INJECTED.get(group, ())
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


def _unknown_options(group: str, node: Any, problem: BaseException) -> UserError:
    return UserError(
        f"{group}._target_={cut(node['_target_'])}: what it can be given is unknown ({_reason(problem)}); "
        "name a class or a function with annotated options"
    )


# -- checks


def check(cfg: DictConfig) -> None:
    """Refuse what cannot be run, in one line that names the key, the value and what is allowed."""
    if unknown := sorted(str(k) for k in cfg if k not in {f.name for f in fields(Settings)}):
        given = OmegaConf.to_container(cfg, resolve=False)
        assert isinstance(given, dict)
        raise UserError(
            f"{cut(unknown[0])}={cut(given.get(unknown[0]))}: there is no such key; `fedpriv run --help` "
            "lists all"
        )
    _check_references(cfg)
    _check_keys(cfg)
    if late := [r for r in cfg.samples_at if r > cfg.rounds]:
        raise UserError(
            f"samples_at={cut(cfg.samples_at)}: there is no round {late[0]}; choose from 0 to "
            f"rounds={cfg.rounds}"
        )
    if cfg.clients * cfg.rounds > MEMORY_ROWS:
        raise UserError(
            f"clients={cfg.clients} for rounds={cfg.rounds}: a run keeps a number a client and round, at "
            f"most {MEMORY_ROWS:,}; lower one of them"
        )
    if cfg.sample_rate * cfg.clients * cfg.rounds < 1:
        raise UserError(
            f"sample_rate={cfg.sample_rate:g}: with clients={cfg.clients} and rounds={cfg.rounds} nobody is "
            "expected to take part even once; raise it"
        )
    for group in GROUPS:
        node = cfg[group]
        _check_group(group, OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node)


def _check_references(cfg: DictConfig) -> None:
    """No value may be made of the run's name, which is made of the values, or of a help."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    for key, value in _leaves({k: v for k, v in written.items() if k != "hydra"}, ""):
        if isinstance(value, str) and re.search("(settings|groups|config)_help:|run_name:|hydra:help", value):
            raise UserError(f"{key}={cut(value)}: refers to a name or a help; give a value")


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value, key)
    else:
        yield key, node


def _check_keys(cfg: DictConfig) -> None:
    """That every top-level key is there and within its limits."""
    present = set(cfg.keys())
    for f in fields(Settings):
        if f.name not in present:
            raise UserError(f"{f.name} is missing: a run needs it; leave out ~{f.name}")
    check_limits(cfg, Settings, "")
    if not isinstance(cfg.checkpoint, DictConfig) or "every" not in cfg.checkpoint:
        raise UserError("checkpoint.every is missing: a run needs it; leave out ~checkpoint")
    check_limits(cfg.checkpoint, CheckpointSettings, "checkpoint.")


def check_limits(cfg: DictConfig, settings: type, prefix: str) -> None:
    hints = typing.get_type_hints(settings)
    for f in fields(settings):
        if "help" not in f.metadata:
            continue
        given, limit = cfg[f.name], f.metadata
        if given is None and type(None) not in typing.get_args(hints[f.name]):
            raise UserError(f"{prefix}{f.name}=null: must be {_describe(hints[f.name])} ({limit['help']})")
        if isinstance(given, ListConfig) and len(given) > _LISTED:
            raise UserError(
                f"{prefix}{f.name}: has {len(given)} values; at most {_LISTED:,} ({limit['help']})"
            )
        for value in given if isinstance(given, ListConfig) else [given]:
            if wrong := _outside(value, limit):
                raise UserError(f"{prefix}{f.name}={cut(given)}: {wrong} ({limit['help']})")


def _outside(value: Any, limit: Mapping[str, Any]) -> str | None:
    """What a value has to be and is not."""
    if value is None or isinstance(value, bool):
        return None
    if "choices" in limit and value not in limit["choices"]:
        return f"choose one of {', '.join(limit['choices'])}"
    if isinstance(value, str):
        return _unreadable(value)
    if not isinstance(value, int | float):
        return "must be a number"
    return _within(limit).broken(value)


def _unreadable(text: str) -> str | None:
    if len(text) > LONGEST or not text.isprintable():
        return f"must be a text of one line and at most {LONGEST:,} characters"
    return None


def target_of(group: str, node: Any) -> Callable[..., Any]:
    path = node.get("_target_") if isinstance(node, dict) else None
    if not path or not isinstance(path, str):
        raise UserError(
            f"{group}={cut(node)}: not an option with a _target_; `fedpriv list {group}` shows them"
        )
    if not path.startswith("fedpriv.") and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # mine.Trimmed finds ./mine.py, and ./csv.py hides nothing
    try:
        found: Callable[..., Any] = get_object(path)
    except Exception as problem:  # whatever importing somebody's file raises
        raise UserError(f"{group}._target_={cut(path)}: cannot be imported ({_reason(problem)})") from problem
    if not callable(found):
        raise UserError(f"{group}._target_={cut(path)}: cannot be called; name a class or a function")
    return found


def _reason(problem: BaseException) -> str:
    return cut(str(problem) or type(problem).__name__, 200)


def _check_names(group: str, node: Any) -> dict[str, inspect.Parameter]:
    """That every value given is an option of the target; its options."""
    plain: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    options = options_of(group, plain)
    for key in plain:
        if key not in (*options, "_target_"):
            near = difflib.get_close_matches(str(key), options, n=1, cutoff=0.6)
            hint = f"did you mean {group}.{near[0]}? " if near else ""
            name = getattr(target_of(group, plain), "__name__", plain["_target_"])
            raise UserError(
                f"{group}.{cut(key)}={cut(plain[key])}: no such option of {name}; {hint}it has "
                f"{', '.join(options) or 'no options'}"
            )
    return options


def _check_group(group: str, node: Any) -> None:
    target = target_of(group, node)
    name = getattr(target, "__name__", str(node["_target_"]))
    try:
        hints = typing.get_type_hints(
            target.__init__ if inspect.isclass(target) else target, include_extras=True
        )
    except Exception as problem:  # an annotation may name what is not there
        raise _unknown_options(group, node, problem) from problem
    options = _check_names(group, node)
    given = {k: v for k, v in node.items() if k != "_target_"}
    for key, value in given.items():
        default = options[key].default
        default = list(default) if isinstance(default, tuple) else default
        if type(value) is type(default) and value == default:
            continue  # not the user's mistake
        wrong = misfit(value, hints.get(key, Any))
        if wrong:
            raise UserError(f"{group}.{key}={cut(value)}: {wrong}")
    for key, parameter in options.items():
        variable = parameter.kind is parameter.VAR_POSITIONAL
        if parameter.default is parameter.empty and key not in given and not variable:
            raise UserError(f"{group}.{key} is missing: {name} needs it")


def allowed(group: str, node: dict[str, Any]) -> dict[str, str]:
    """What every value of an option may be, in words."""
    target = target_of(group, node)
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    return {key: _describe(hints.get(key, Any)) for key in options_of(group, node)}


def misfit(value: Any, hint: Any) -> str | None:
    """What a value has to be by an annotation and is not."""
    if not _fits(value, hint):
        return f"must be {_describe(hint)}"
    return _beyond(value, hint)


def _beyond(value: Any, hint: Any) -> str | None:
    """Which limit a value of the right type breaks."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        broken = [_beyond(value, a) for a in arguments if _fits(value, a)]
        return None if None in broken else broken[0]
    if isinstance(value, list | tuple):
        if len(value) > _LISTED:
            return f"must have at most {_LISTED:,} values"
        inner = arguments[0] if origin in (list, tuple) and arguments else Any
        return next((wrong for v in value if (wrong := _beyond(v, inner))), None)
    if isinstance(value, dict):
        return next((wrong for _, v in _leaves(value, "") if (wrong := _beyond(v, Any))), None)
    if isinstance(value, str):
        return _unreadable(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    own = next((a for a in arguments if isinstance(a, Within)), None) if origin is typing.Annotated else None
    if isinstance(value, int) and abs(value) > MOST:
        return WHOLE.broken(value)
    return (own or ANY).broken(value)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Annotated:
        return _fits(value, arguments[0])
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if hint in (None, type(None)):
        return value is None
    if origin in (list, tuple):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list | tuple) and all(_fits(v, inner) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        own = next((a for a in arguments if isinstance(a, Within)), None)
        plain = "a whole number" if arguments[0] is int else "a number"
        return f"{plain}, {own.words()}" if own else _describe(arguments[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    if origin in (list, tuple):
        return "a list, each " + _describe(arguments[0] if arguments else Any)
    names = {
        int: f"a whole number, {WHOLE.words()}",
        float: f"a number, {ANY.words()}",
        bool: "true or false",
        str: "a text",
        type(None): "null",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))
