"""hydra/sweeper=optuna as Hydra composes it: ours in place of the plug-in's own, with its samplers."""

import sys
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import MISSING

from fedpriv.errors import UserError

NAME = "hydra_plugins.fedpriv"  # Hydra takes no sweeper from a module of another name: this is its second


class Searching(Sweeper):
    """A search, once it begins: Optuna is loaded for no other run."""

    def __init__(self, **options: Any):
        self.options = options

    def setup(self, **context: Any) -> None:
        try:
            from fedpriv.commands.search import Search
        except ImportError as problem:
            raise UserError(
                f"hydra/sweeper=optuna: Optuna is not installed ({problem}); pip install 'fedpriv[tune]'"
            ) from problem
        self.search = Search(**self.options)
        self.search.setup(**context)

    def sweep(self, arguments: list[str]) -> Any:
        return self.search.sweep(arguments)


Searching.__module__ = NAME
sys.modules[NAME] = sys.modules[__name__]


@dataclass
class SearchConf:
    _target_: str = f"{NAME}.{Searching.__name__}"
    _recursive_: bool = False  # samplers are made for every trial
    defaults: list[Any] = field(default_factory=lambda: [{"sampler": "tpe"}])
    sampler: Any = MISSING
    direction: Any = "maximize"  # or minimize, or a list with one for each objective
    n_trials: int = 20  # exactly, or on average
    # fixed; or geometric, logarithmic, negative_binomial, poisson: a random number of random trials
    trials_law: str = "fixed"
    trials_shape: float = 1.0  # of negative_binomial
    n_jobs: int = 1  # trials at a time
    storage: str | None = None  # null: search.db in the sweep's folder
    study_name: str | None = None  # null: by what is searched for
    params: dict[str, str] | None = None


@dataclass
class WithoutSamplers(SearchConf):
    """The plug-in is not there; what is missing is said when a search begins."""

    defaults: list[Any] = field(default_factory=list)
    sampler: Any = None


def register() -> None:
    Plugins.instance().register(Searching)
    store = ConfigStore.instance()
    there = "sampler" in store.list("hydra/sweeper")  # plug-ins have stored theirs
    store.store(group="hydra/sweeper", name="optuna", node=SearchConf if there else WithoutSamplers)
