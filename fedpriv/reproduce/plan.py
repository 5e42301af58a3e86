"""Which runs a reproduction needs, and which of them are done."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from fedpriv.config import identity
from fedpriv.config.checks import check
from fedpriv.config.composing import compose, expand, in_one_line
from fedpriv.config.mistakes import unknown
from fedpriv.config.schema import GROUPS
from fedpriv.device import kind_of_device
from fedpriv.errors import UserError
from fedpriv.reproduce import rows
from fedpriv.reproduce.recipe import SCALES, Cell, Recipe, Rule, Scale


@dataclass(frozen=True)
class Job:
    """One run: a cell and a seed."""

    recipe: Recipe
    cell: Cell
    seed: int
    scale: Scale
    identity: str
    alike: tuple[str, ...]  # its identities on any kind of device: what was run on one is not run on another
    config: DictConfig

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*map(expand, self.cell.overrides), f"seed={self.seed}")

    def __str__(self) -> str:
        return f"{self.recipe.name}: {self.cell} seed={self.seed}"


def jobs_of(
    recipes: Iterable[Recipe],
    scale: Scale,
    seeds: int | None,
    only: Rule | None = None,
    device: str = "auto",
) -> list[Job]:
    """Every run, all cells with the first seed before any second; what two recipes share is there twice."""
    found = []
    for recipe in recipes:
        for cell in recipe.cells(scale, only):
            config = _sound(recipe, cell, device)
            for seed in range(seeds or recipe.seeds(scale)):
                config = copy.copy(config)
                config.seed = seed
                alike = tuple(identity.of_config(config, kind) for kind in identity.KINDS)
                own = alike[identity.KINDS.index(kind_of_device(device))]
                found.append(Job(recipe, cell, seed, scale, own, alike, config))
    return sorted(found, key=lambda job: job.seed)


def _sound(recipe: Recipe, cell: Cell, device: str) -> DictConfig:
    """The config of a cell; what cannot be run is refused with the cell's name."""
    try:
        with in_one_line():
            return composed((*cell.overrides, f"device={device}"))
    except UserError as problem:
        raise UserError(f"{recipe.name}, {cell}: {problem}") from problem


def composed(overrides: Iterable[str]) -> DictConfig:
    """What Hydra makes of a cell, checked as a run is; the choice of options, which takes it long, is made
    once and kept. What a part of somebody's own can be given is asked while composing."""
    given = [expand(override) for override in overrides]
    own = {o.partition("._target_=")[0] for o in given if "._target_=" in o}
    first = [o for o in given if o.partition("=")[0] in GROUPS or o.partition(".")[0] in own]
    config = copy.deepcopy(_chosen(tuple(first)))
    for override in OverridesParser.create().parse_overrides([o for o in given if o not in first]):
        if override.key_or_group.partition(".")[0] not in config:
            raise UserError(unknown(str(override.input_line)))
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=True)
    check(config)
    return config


@cache
def _chosen(options: tuple[str, ...]) -> DictConfig:
    return compose(options)


def collect(jobs: Sequence[Job], runs: Path, folder: Path, keep: bool = True) -> list[Job]:
    """Put every finished run into its recipe's file (without `keep` not); the jobs that are left."""
    known, finished = rows.known(folder), rows.finished(runs)
    own = {
        recipe: {(row.identity, *row.cell.values()) for row in rows.read(recipe, folder)}
        for recipe in {job.recipe for job in jobs}
    }
    left = []
    for job in jobs:
        if any((one, *job.cell.facts.values()) in own[job.recipe] for one in job.alike):
            continue
        done = next((one for one in job.alike if one in known), None)
        line = known[done] if done else None
        for one in job.alike if done is None else ():
            if (place := finished.get(identity.short(one))) and (summary := rows.sound_summary(place)):
                done, line = one, rows.of_summary(summary, job.overrides)
                break
        if done is None or line is None:
            left.append(job)
        elif keep:
            rows.add(job.recipe, job.cell, job.seed, job.scale, done, line, folder)
    return left


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """One job for every run: two recipes may ask for the same."""
    return list({job.identity: job for job in jobs}.values())


def still(recipe: Recipe, runs: Sequence[rows.Row]) -> list[rows.Row]:
    """The rows that are runs of the recipe, and of the parts it names, as they are now."""
    planned = set()
    for scale in {run.scale for run in runs} & set(SCALES):
        seeds = 1 + max(run.seed for run in runs if run.scale == scale)
        for job in jobs_of([recipe], cast(Scale, scale), seeds):
            planned |= {(one, job.scale, *job.cell.facts.values()) for one in job.alike}
    return [run for run in runs if (run.identity, run.scale, *run.cell.values()) in planned]
