"""`fedpriv run`. One run is composed and executed here; a sweep and Hydra's other flags are Hydra's own."""

import copy
import os
import sys
from argparse import Namespace

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedpriv.config.checks import check_keys
from fedpriv.config.composing import check_form, compose, plan, prepared
from fedpriv.config.schema import GROUPS, Schema
from fedpriv.errors import UserError
from fedpriv.session.execution import execute


def main(rest: list[str]) -> int:
    rest, jobs = _without_jobs(rest)
    rest.sort(key=lambda word: word not in ("-m", "--multirun"))  # it may stand anywhere
    told, unknown = get_args_parser().parse_known_args(rest)
    if unknown:
        raise UserError(f"{unknown[0]}: no such option; `fedpriv run --hydra-help` lists them")
    check_form(told.overrides)
    if told.cfg == "job":
        return _show_config(told)
    if jobs is not None:
        if not told.multirun:
            raise UserError(f"--jobs {jobs}: runs the cells of a sweep side by side; add -m, or leave it out")
        rest += _side_by_side(jobs, told.overrides)
    if _plain(told):
        return _single(told.overrides, told.config_dir)
    if told.multirun:
        _check_lists(told.overrides, told.config_dir)
    return _by_hydra(rest)


def _plain(told: Namespace) -> bool:
    """Whether this is one run and told by its values alone."""
    flags = [name for name, value in vars(told).items() if value and name not in ("overrides", "config_dir")]
    hydra = [o for o in told.overrides if o.lstrip("+~").startswith("hydra") or "${hydra:" in o]
    return not flags and all(word.startswith("hydra.run.dir=") for word in hydra)


def _single(overrides: list[str], config_dir: str | None) -> int:
    planned = plan(overrides, config_dir)
    execute(planned.config, planned.folder.absolute(), planned.title)
    return 0


def _check_lists(overrides: list[str], config_dir: str | None) -> None:
    """Refuse a value of a comma list that no run can have: its cell would end the sweep in the middle."""
    given = OverridesParser.create().parse_overrides(prepared(overrides))
    lists = {o.get_key_element(): list(o.sweep_string_iterator()) for o in given if o.is_discrete_sweep()}
    values = {key: texts for key, texts in lists.items() if hasattr(Schema, key) and key not in GROUPS}
    if not values:
        return  # options are looked up by Hydra before the first cell
    first = [str(o.input_line) for o in given if not o.is_sweep_override()]
    first += [f"{key}={texts[0]}" for key, texts in lists.items()]
    base = compose([override for override in first if not override.startswith("hydra")], config_dir)
    for key, texts in values.items():
        config = copy.deepcopy(base)
        for override in OverridesParser.create().parse_overrides([f"{key}={text}" for text in texts]):
            OmegaConf.update(config, key, override.value())
            check_keys(config)


def _by_hydra(rest: list[str]) -> int:
    from fedpriv.commands import job, sweeping

    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach us, instead of Hydra printing and exiting
    sys.argv = [sys.argv[0], *prepared(rest)]
    job.hydra_main()
    if job.failure is not None:
        raise job.failure
    return 1 if sweeping.failures else 0


def _show_config(told: Namespace) -> int:
    """--cfg job with every value, also those that an option's file leaves to its target."""
    config = compose(told.overrides, told.config_dir)
    shown = OmegaConf.select(config, told.package) if told.package else config
    print(OmegaConf.to_yaml(shown, resolve=told.resolve), end="")
    return 0


def _without_jobs(rest: list[str]) -> tuple[list[str], int | None]:
    """The arguments without --jobs N, and the number."""
    left, jobs, words = [], None, iter(rest)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--jobs":
            left.append(word)
            continue
        given = value if equals else next(words, "")
        if not given.isascii() or not given.isdigit() or not 0 < int(given) <= 1024:
            raise UserError(f"--jobs {given}: must be a whole number, 1 to 1,024")
        jobs = int(given)
    return left, jobs


def _side_by_side(jobs: int, overrides: list[str]) -> list[str]:
    """What makes Hydra run so many cells at a time on this machine, each with its share of the cores."""
    if any(word.startswith("hydra/launcher=") for word in overrides):
        raise UserError(f"--jobs {jobs}: another launcher is chosen already; leave one of the two out")
    more = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"]
    if not any(word.startswith("threads=") for word in overrides):
        from fedpriv.engine.base import cores

        more.append(f"threads={max(1, cores() // jobs)}")
        more.append("hydra.job.config.override_dirname.exclude_keys=[threads]")  # of the cells' names
    return more
