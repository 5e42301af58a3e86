"""Is every key used once, and does it follow from the run's secret? Is any row of noise drawn twice?"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

from omegaconf import DictConfig

from fedpriv import building
from fedpriv.audit.finding import Finding, judged
from fedpriv.audit.noise import drawn
from fedpriv.audit.taps import Bench
from fedpriv.parts.making import source


def audit(bench: Bench) -> list[Finding]:
    """Keys of parts, rows of noise, and keys of other runs."""
    able, seen, rounds = bench.everyone(), [], min(2, bench.trainer.setting.rounds)
    names = []
    for key in (0, 0, 1):
        bench.reset(key)
        with drawn() as (rows, _):
            heard = [bench.round(able=able) for _ in range(rounds)]
        names.append(rows)
        seen.append([source.key for h in heard for source in h.sources])
    one, again, other = seen
    found = [
        judged(
            "a run's numbers follow from its key", one == again, "the same key twice gives the same sources"
        ),
        judged(
            "keys of rounds and purposes are their own",
            len(set(one)) == len(one),
            f"{len(one)} sources in {rounds} rounds have {len(set(one))} keys",
        ),
        judged(
            "keys follow from the secret",
            not set(one) & set(other),
            f"{len(set(one) & set(other))} of {len(one)} sources are the same under another secret",
        ),
    ]
    repeated = [name for name, times in Counter(names[0]).items() if times > 1]
    text = f"{len(names[0])} rows of noise in {rounds} rounds, {len(repeated)} of them drawn more than once"
    found.append(judged("no row of noise is drawn twice", not repeated, text, len(repeated), 0))
    shared = set(names[0]) & set(names[2])
    text = f"{len(shared)} of {len(names[0])} rows of noise are the same under another secret"
    found.append(judged("noise follows from the secret", not shared, text, len(shared), 0))
    return [*found, *_other_runs(bench)]


def _other_runs(bench: Bench) -> list[Finding]:
    """With noise_seed=config: runs that differ in anything have another key."""
    cells: dict[str, Any] = {
        "this run": {},
        "another seed": {"seed": bench.seed + 1},
        "another learning rate": {"lr": float(bench.cfg.lr) * 1.5},
        "other data": {},
    }
    keys = {name: _key(bench.cfg, values, name == "other data") for name, values in cells.items()}
    same = [name for name in keys if name != "this run" and keys[name] == keys["this run"]]
    text = (
        f"{same[0]} has the same noise" if same else "another seed, config or data set has noise of its own"
    )
    return [judged("no other run has this noise", not same, text)]


def _key(cfg: DictConfig, values: dict[str, Any], other_data: bool) -> bytes:
    """The key of a repeatable run: `build` is stopped as soon as it has one."""
    own = cfg.copy()
    own.noise_seed = "config"
    own.partition_seed = own.seed if own.partition_seed is None else own.partition_seed
    for key, value in values.items():
        own[key] = value

    def flipped(given: DictConfig) -> tuple[Any, Path]:
        dataset, folder = source(given)
        return _Flipped(dataset) if other_data else dataset, folder

    with patch.object(building, "source", flipped), patch.object(building, "Source", _Stop):
        try:
            building.build(own, prepare=False)
        except _Found as found:
            return found.key
    raise AssertionError("a run without a key")


class _Found(Exception):
    def __init__(self, key: bytes):
        super().__init__("key")
        self.key = key


def _Stop(key: bytes) -> Any:
    raise _Found(key)


class _Flipped:
    """A data set in which one number of one sample is another."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def load(self, *given: Any) -> Any:
        data = self._dataset.load(*given)
        x = data.x_train.clone()
        flat = x.view(-1)
        flat[0] = flat[0] + 1 if flat[0] < 1 else flat[0] - 1
        return dataclasses.replace(data, x_train=x)
