"""A plug-in between parts it fits, and all checks of its seam."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedpriv.aggregators.base import Aggregator
from fedpriv.algorithms.base import Algorithm
from fedpriv.config.composing import compose
from fedpriv.config.options import target_of
from fedpriv.contracts.aggregators import aggregator_checks
from fedpriv.contracts.mechanisms import mechanism_checks
from fedpriv.contracts.runs import run_checks
from fedpriv.contracts.trial import Broken, Check, Untold
from fedpriv.contracts.uploads import upload_checks
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.parts.making import make
from fedpriv.servers.base import Server
from fedpriv.stages.base import Stage
from fedpriv.uploads.base import Upload

SEAMS: dict[str, type] = {
    "dp_variant": Mechanism,
    "algorithm": Algorithm,
    "aggregator": Aggregator,
    "upload": Upload,
    "server": Server,
    "stage": Stage,
}
SMALL = ("model.sizes=[8]", "clients=4", "rounds=3", "batch_size=64", "threads=1", "dp_variant=none")


@dataclass(frozen=True)
class Bench:
    """One plug-in in its seam, and a config of a small run that holds it."""

    group: str
    cfg: DictConfig

    def part(self) -> Any:
        return make(self.cfg, self.group)

    def checks(self) -> list[Check]:
        alone: dict[str, Callable[[Callable[[], Any]], Iterator[Check]]] = {
            "dp_variant": mechanism_checks,
            "aggregator": aggregator_checks,
            "upload": upload_checks,
        }
        own = alone.get(self.group)
        return [*(own(self.part) if own else ()), *run_checks(self.cfg)]


def seam_of(target: object) -> str:
    """The group a class belongs to, by its base."""
    for group, base in SEAMS.items():
        if isinstance(target, type) and issubclass(target, base):
            return group
    bases = ", ".join(base.__name__ for base in SEAMS.values())
    raise UserError(
        f"{getattr(target, '__name__', target)}: derives from none of {bases}; give it such a base"
    )


def bench(target: str, options: dict[str, Any], overrides: tuple[str, ...] = ()) -> Bench:
    """The plug-in `target` with options of its own, between parts it fits."""
    group = seam_of(target_of("check", {"_target_": target}))
    cfg = compose([*SMALL, *overrides])
    OmegaConf.set_struct(cfg, False)
    cfg[group] = {"_target_": target, **options}
    facts = getattr(make(cfg, group), "facts", None)
    shares = getattr(facts, "sends", "") == "shares" or getattr(facts, "takes", None) == {"shares"}
    if shares and group != "aggregator":
        cfg.aggregator = {"_target_": "fedpriv.aggregators.sum.Sum"}
        if group != "upload":
            cfg.upload = {"_target_": "fedpriv.uploads.secure_sum.SecureSum"}
        if group != "dp_variant":
            cfg.dp_variant = {"_target_": "fedpriv.mechanisms.ddp.DDP", "bits": 20}
    if getattr(facts, "needs_subspace", False):
        cfg.aggregator = {"_target_": "fedpriv.aggregators.pfa_plus.PFAPlus"}
    return Bench(group, cfg)


def tried(check: Check) -> tuple[str, str]:
    """ "ok", "-" (cannot be tried) or "FAILED", and why."""
    try:
        check.run()
    except Untold as why:
        return "-", str(why)
    except (Broken, UserError) as why:
        return "FAILED", str(why)
    except Exception as problem:  # whatever somebody's part raises
        return "FAILED", f"{type(problem).__name__}: {problem}".splitlines()[0]
    return "ok", ""
