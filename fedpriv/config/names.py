"""The name of a run's folder and the texts of `run --help`: what Hydra asks us for while it composes."""

import re
from collections.abc import Iterable, Mapping

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, flag_override

from fedpriv.config import identity
from fedpriv.config.checks import check_keys, check_names, check_references
from fedpriv.config.limits import ANY, WHOLE
from fedpriv.config.options import filled, keys_of
from fedpriv.config.schema import GROUPS, Schema, described


def register() -> None:
    """Make the schema and the resolvers known to Hydra; may be called again."""
    ConfigStore.instance().store(name="schema", node=Schema)
    OmegaConf.register_new_resolver("run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("settings_help", _help, replace=True)
    OmegaConf.register_new_resolver("groups_help", _groups_help, replace=True)
    OmegaConf.register_new_resolver("config_help", _config_help, replace=True)


def _help() -> str:
    rows = [(k, "FEDPRIV_DATA" if "oc.env" in d else d, h) for k, d, h in described()]
    numbers = f"every other number: {ANY.words()}; every other whole number: {WHOLE.words()}"
    return "\n".join([*(f"  {key:<17} {default:<12} {text}" for key, default, text in rows), f"  {numbers}"])


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


def _run_name(*, _root_: DictConfig) -> str:
    """Hydra names the folder before anything is run: what is no number is refused here, not in a name."""
    check_references(_root_)
    check_keys(_root_)
    cfg = job_of(_root_)
    for group in GROUPS:
        check_names(group, cfg[group])
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
