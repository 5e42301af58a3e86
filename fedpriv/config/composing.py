"""From what a user writes (`dp=ldp`, `agg.k=2`) to a config that holds every value of a run."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from unicodedata import normalize

import hydra
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from fedpriv.config.limits import cut
from fedpriv.config.names import job_of, part_names, register
from fedpriv.config.options import filled
from fedpriv.config.schema import GROUPS
from fedpriv.errors import Interrupted, UserError

SHORT = {"dp": "dp_variant", "agg": "aggregator"}
_NAME = r"(['\"]?)(?!null$)[A-Za-z_][\w\-./]*\1"  # of a group's option


def expand(override: str) -> str:
    """dp=ldp -> dp_variant=ldp, agg.k=2 -> aggregator.k=2; anything else as it is."""
    return re.sub(
        r"^([+~]{0,2})(dp|agg)(?=[=.@]|$)", lambda m: m.group(1) + SHORT[m.group(2)], override, count=1
    )


def check_form(words: Sequence[str]) -> None:
    """That every word sets a key: Hydra's answer to `epsilon 3` helps nobody."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        key, equals, value = word.partition("=")
        name = key.lstrip("+~").partition(".")[0].partition("@")[0]
        if not equals and not key.startswith("~"):
            better = f"{cut(key)}={after}" if after and "=" not in after else "epsilon=3"
            raise UserError(f"{cut(word)}: write key=value, such as {better}")
        if not name.isascii():
            plain = normalize("NFKD", key).encode("ascii", "ignore").decode()
            raise UserError(
                f"{cut(word)}: keys have plain letters; write key=value, such as {plain}={cut(value)}"
            )


def prepared(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra shall see them; what it would stumble over is refused in one line."""
    return [_settable(_one_option(expand(override))) for override in overrides]


def _one_option(override: str) -> str:
    """A group is given the name of an option, or several to sweep over; Hydra has no answer to model=[1]."""
    key, equals, value = override.partition("=")
    group = key.lstrip("+").partition("@")[0]
    if equals and group in GROUPS:
        names = all(re.fullmatch(_NAME, part.strip()) for part in value.split(","))
        if not names and not re.fullmatch(r"\w+\(.*\)", value.strip()):
            raise UserError(f"{cut(override)}: name an option of {group}; `fedpriv list {group}` shows them")
    return override


def _settable(override: str) -> str:
    """A value of an option is set whether its file names it or not: which there are, the target knows."""
    key = override.partition("=")[0]
    return f"++{override}" if key.partition(".")[0] in GROUPS and "." in key else override


def shown(override: str) -> str:
    """As the user wrote it."""
    return override.removeprefix("++")


@dataclass(frozen=True)
class Planned:
    """A run before it begins."""

    config: DictConfig
    folder: Path  # where the same run goes every time
    title: str


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The config of a run, with every value in it. `config_dir`: a folder of the user's own options."""
    check_form(overrides)
    given = prepared(overrides)
    return filled(_composed(given, config_dir), given)


def plan(overrides: Sequence[str], config_dir: str | Path | None = None) -> Planned:
    check_form(overrides)
    given = prepared(overrides)
    whole = _composed(given, config_dir, return_hydra_config=True)
    config, folder = job_of(whole), Path(whole.hydra.run.dir)
    return Planned(config, folder, title(config, part_names(config, whole.hydra.runtime.choices, given)))


def title(cfg: DictConfig, parts: Sequence[str]) -> str:
    """No epsilon without privacy, and none where every client has a budget of its own."""
    asked = cfg.budget.get("epsilon") if "none" not in parts else None
    epsilon = f", epsilon {asked:g}" if isinstance(asked, int | float) else ""
    return f"{', '.join(parts)}: {cfg.clients} clients{epsilon}"


def _composed(given: list[str], config_dir: str | Path | None, **more: bool) -> DictConfig:
    register()
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise UserError(f"--config-dir {config_dir}: no such folder; name one with your own options")
        given = [*given, f"hydra.searchpath=['file://{Path(config_dir).absolute()}']"]
    running = GlobalHydra.instance().hydra  # in a worker of a sweep: Hydra starts no second time beside it
    GlobalHydra.instance().hydra = None
    try:
        with initialize_config_module("fedpriv.conf", version_base="1.3"):
            return hydra.compose("config", overrides=given, **more)
    finally:
        GlobalHydra.instance().hydra = running


def without_config_dir(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """A command's arguments without Hydra's --config-dir FOLDER, and the folder."""
    rest, folder = [], None
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            rest.append(word)
        elif not (folder := value if equals else next(words, None)):
            raise UserError(f"{flag}: needs a folder with your own options")
    return rest, folder


@contextmanager
def in_one_line() -> Iterator[None]:
    """A user's mistake, whoever found it, is a UserError."""
    from fedpriv.config.mistakes import explain

    try:
        yield
    except (UserError, Interrupted):
        raise
    except Exception as error:
        if (line := explain(error)) is None:
            raise
        raise UserError(line) from error
