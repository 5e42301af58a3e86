"""What Python code uses: `import fedpriv`, then `fedpriv.run(...)` and its neighbours.

Everything is told as on the command line, as texts (`"dp=ldp"`, `"agg.k=2"`), or by keyword: `rounds=5`. In
`sweep` the values of a list are taken one after the other. A user's mistake is a `UserError` of one line.

>>> import fedpriv
>>> small = ("model.sizes=[8]", "clients=4")
>>> done = fedpriv.run("dp=ldp", "agg=mean", *small, rounds=2, quiet=True)
>>> done.metrics["round"].tolist()
[1, 2]
>>> done.summary["epsilon_spent"] <= 8
True
>>> fedpriv.run(*small, rounds=2, quiet=True).folder == done.folder  # it is done: only read
True
>>> fedpriv.compose("agg=pfa", rounds=5).aggregator.k
1
>>> fedpriv.build("dp=none", "model=logreg", clients=3).trainer.setting.clients
3
>>> cells = fedpriv.sweep(*small, "dp=none", rounds=1, seed=[0, 1], quiet=True)
>>> [cell.overrides[-1] for cell in cells]
['seed=0', 'seed=1']
>>> fedpriv.load(done.folder).training
False
>>> sorted(fedpriv.results()["dp_variant"])
['ldp', 'none', 'none']
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from omegaconf import DictConfig

from fedpriv.config import composing
from fedpriv.errors import UserError

if TYPE_CHECKING:
    from fedpriv.building import Run
    from fedpriv.models.parts import Network

__all__ = ["Outcome", "UserError", "build", "compose", "load", "results", "run", "sweep"]
RUNS = Path("outputs") / "runs"


@dataclass(frozen=True)
class Outcome:
    """What came of a run. `error` is None, or in a sweep why the cell failed; it has no summary then."""

    overrides: tuple[str, ...]
    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)  # summary.json
    error: str | None = None

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv: a row a round."""
        return pd.read_csv(self.folder / "metrics.csv")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """clients.csv: a row a client and round."""
        return pd.read_csv(self.folder / "clients.csv")

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """privacy.json: the guarantee in full."""
        from fedpriv.files import read_json

        return read_json(self.folder / "privacy.json")


def compose(*overrides: str, config_dir: str | Path | None = None, **values: Any) -> DictConfig:
    """The config of a run, every value in it. `config_dir`: a folder with your own options, as YAML files."""
    with composing.in_one_line():
        return composing.compose([*overrides, *_written(values)], config_dir)


def build(
    *overrides: str | DictConfig, config_dir: str | Path | None = None, prepare: bool = True, **values: Any
) -> "Run":
    """The parts of a run, ready for `.trainer.round()`: of overrides or of a composed config.

    Without `prepare` a stage before round 0 is not run.
    """
    from fedpriv.building import build as assemble

    given = list(overrides)
    with composing.in_one_line():
        if len(given) == 1 and isinstance(given[0], DictConfig):
            if values or config_dir:
                raise UserError("build: a composed config has all its values; give the others to compose")
            return assemble(given[0], prepare=prepare)
        texts = [text for text in given if isinstance(text, str)]
        return assemble(compose(*texts, config_dir=config_dir, **values), prepare=prepare)


def run(
    *overrides: str,
    config_dir: str | Path | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
    **values: Any,
) -> Outcome:
    """Run one experiment, continue it, or read it if it is done: the same as `fedpriv run`, in its folder."""
    return _run([*overrides, *_written(values)], config_dir, folder, quiet)


def sweep(
    *overrides: str, config_dir: str | Path | None = None, quiet: bool = False, **values: Any
) -> list[Outcome]:
    """Run every combination of the values in lists (`epsilon=[2, 8]`) or with commas (`"seed=0,1"`), one
    after the other. A cell that fails says so in `error` and stops nothing."""
    with composing.in_one_line():
        cells = _cells([*overrides, *_written(values, sweep=True)])
    done = []
    for cell in cells:
        try:
            done.append(_run(cell, config_dir, None, quiet))
        except UserError as problem:
            done.append(Outcome(tuple(cell), RUNS, error=str(problem)))
    return done


def results(folder: str | Path = RUNS, *filters: str, unfinished: bool = False) -> pd.DataFrame:
    """Every finished run in or below a folder, a row each: its folder, what it was told, its summary.

    `filters` keep runs that agree ("dp=ldp", "seed=0,1"); with `unfinished` those that run, failed or were
    cut off are there too, and `state` tells them apart.
    """
    from fedpriv.studies import reader, selecting

    place = [Path(folder)]
    runs = reader.look(place) if unfinished else reader.find(place)[0]
    rows = []
    for each in selecting.chosen(runs, selecting.sort_out(filters).filters):
        measured = {k: v for k, v in each.summary.items() if not isinstance(v, dict | list)}
        about = {"folder": str(each.folder), "state": each.state, "diverged": each.diverged}
        rows.append({**about, **each.values, **measured})
    return pd.DataFrame(rows)


def load(folder: str | Path, client: int | None = None) -> "Network":
    """The network that a finished run trained, as a `torch.nn.Module` in evaluation mode.

    With `client` that client's own, for a run with `personal=true`. The same values are in the run's
    `model.pt`, a state dict that `torch.load` opens.
    """
    from fedpriv.session.trained import load as trained

    return trained(Path(folder), client)


def _run(
    overrides: list[str], config_dir: str | Path | None, folder: str | Path | None, quiet: bool
) -> Outcome:
    from fedpriv.session.execution import execute

    with composing.in_one_line(), _silent(quiet):
        planned = composing.plan(overrides, config_dir)
        place = planned.folder if folder is None else Path(folder)
        return Outcome(tuple(overrides), place, execute(planned.config, place, planned.title))


def _cells(overrides: list[str]) -> list[list[str]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(composing.prepared(overrides))
    (cells,) = BasicSweeper.split_arguments(parsed, None)
    return [[composing.shown(override) for override in cell] for cell in cells]


def _written(values: dict[str, Any], sweep: bool = False) -> list[str]:
    """Keywords as overrides; with `sweep` a list is what its key goes through."""
    texts = []
    for key, value in values.items():
        many = isinstance(value, list | tuple | range) and sweep
        texts.append(f"{key}={','.join(map(_text, value)) if many else _text(value)}")
    return texts


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | range):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, str | Path):
        text = str(value)
        if re.fullmatch(r"[\w./-]+", text):
            return text
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", text)) + "'"
    if isinstance(value, int | float):
        return repr(value)
    if callable(getattr(value, "item", None)):  # a number of NumPy or torch
        return _text(value.item())
    raise UserError(f"{value!r}: give a number, a text, true or false, None or a list of them")


@contextmanager
def _silent(quiet: bool) -> Iterator[None]:
    from fedpriv.session import screen

    before = screen.console.quiet
    screen.silence(quiet or before)
    try:
        yield
    finally:
        screen.silence(before)
