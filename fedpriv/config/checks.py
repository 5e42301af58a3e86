"""Refuse what cannot be run, in one line that names the key, the value and what is allowed."""

import difflib
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from fedpriv.config.annotations import LISTED, describe, leaves, misfit, unreadable
from fedpriv.config.limits import cut
from fedpriv.config.options import INJECTED, options_of, signature_of
from fedpriv.config.schema import GROUPS, CheckpointSchema, Schema, within_of
from fedpriv.errors import UserError

MEMORY_ROWS = 10**9  # rows of clients.csv, one a client and round


def check(cfg: DictConfig) -> None:
    """Refuse what cannot be run, in one line that names the key, the value and what is allowed."""
    if unknown := sorted(str(k) for k in cfg if k not in {f.name for f in fields(Schema)}):
        given = OmegaConf.to_container(cfg, resolve=False)
        assert isinstance(given, dict)
        raise UserError(
            f"{cut(unknown[0])}={cut(given.get(unknown[0]))}: there is no such key; `fedpriv run --help` "
            "lists all"
        )
    check_references(cfg)
    check_keys(cfg)
    if late := [r for r in cfg.samples_at if r > cfg.rounds]:
        raise UserError(
            f"samples_at={cut(cfg.samples_at)}: there is no round {late[0]}; choose from 0 to "
            f"rounds={cfg.rounds}"
        )
    if cfg.processes > cfg.clients:
        raise UserError(f"processes={cfg.processes}: more than clients={cfg.clients}; use fewer")
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


def check_references(cfg: DictConfig) -> None:
    """No value may be made of the run's name, which is made of the values, or of a help."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    for key, value in leaves({k: v for k, v in written.items() if k != "hydra"}, ""):
        if isinstance(value, str) and re.search("(settings|groups|config)_help:|run_name:|hydra:help", value):
            raise UserError(f"{key}={cut(value)}: refers to a name or a help; give a value")


def check_keys(cfg: DictConfig) -> None:
    """That every top-level key is there and within its limits."""
    present = set(cfg.keys())
    for f in fields(Schema):
        if f.name not in present:
            raise UserError(f"{f.name} is missing: a run needs it; leave out ~{f.name}")
    check_limits(cfg, Schema, "")
    if not isinstance(cfg.checkpoint, DictConfig) or "every" not in cfg.checkpoint:
        raise UserError("checkpoint.every is missing: a run needs it; leave out ~checkpoint")
    check_limits(cfg.checkpoint, CheckpointSchema, "checkpoint.")


def check_limits(cfg: DictConfig, settings: type, prefix: str) -> None:
    hints = typing.get_type_hints(settings)
    for f in fields(settings):
        if "help" not in f.metadata:
            continue
        given, limit = cfg[f.name], f.metadata
        if given is None and hints[f.name] is not Any and type(None) not in typing.get_args(hints[f.name]):
            raise UserError(f"{prefix}{f.name}=null: must be {describe(hints[f.name])} ({limit['help']})")
        if isinstance(given, ListConfig) and len(given) > LISTED:
            raise UserError(
                f"{prefix}{f.name}: has {len(given)} values; at most {LISTED:,} ({limit['help']})"
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
        return unreadable(value)
    if not isinstance(value, int | float):
        return "must be a number"
    return within_of(limit).broken(value)


def check_names(group: str, node: Any) -> dict[str, inspect.Parameter]:
    """That every value given is an option of the target; its options."""
    plain: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    options = options_of(group, plain)
    for key in plain:
        if key not in (*options, "_target_"):
            near = difflib.get_close_matches(str(key), options, n=1, cutoff=0.6)
            hint = f"did you mean {group}.{near[0]}? " if near else ""
            raise UserError(
                f"{group}.{cut(key)}={cut(plain[key])}: no such option of {signature_of(group, plain).name}; "
                f"{hint}it has {', '.join(options) or 'no options'}"
                f"{_elsewhere(group, str(key))}"
            )
    return options


def _elsewhere(group: str, key: str) -> str:
    """Which options of the group have it: the user may have meant another."""
    from fedpriv.config.catalogue import contents

    if not (others := [name for name, content in contents(group).items() if key in content]):
        return ""
    return f"; {group}={' or '.join(others[:4])} {'have' if len(others) > 1 else 'has'} it"


def _check_group(group: str, node: Any) -> None:
    signature, options = signature_of(group, node), check_names(group, node)
    given = {k: v for k, v in node.items() if k != "_target_"}
    for key, value in given.items():
        default = options[key].default
        default = list(default) if isinstance(default, tuple) else default
        if type(value) is type(default) and value == default:
            continue  # not the user's mistake
        wrong = misfit(value, signature.hints.get(key, Any))
        if wrong:
            raise UserError(f"{group}.{key}={cut(value)}: {wrong}")
    for key, parameter in options.items():
        variable = parameter.kind is parameter.VAR_POSITIONAL
        if parameter.default is parameter.empty and key not in given and not variable:
            told = f"; of the data it is told {', '.join(INJECTED[group])}" if group in INJECTED else ""
            raise UserError(f"{group}.{key} is missing: {signature.name} needs it{told}")
