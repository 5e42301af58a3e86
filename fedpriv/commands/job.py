"""What Hydra calls for every run or cell."""

from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from fedpriv.commands import sweeping
from fedpriv.commands.objective import names_of, values_of
from fedpriv.config import searching
from fedpriv.config.composing import title
from fedpriv.config.names import part_names, register
from fedpriv.config.options import filled
from fedpriv.config.searching import SearchConf
from fedpriv.errors import Interrupted
from fedpriv.session.execution import execute
from fedpriv.session.screen import console

register()
searching.register()


failure: BaseException | None = None  # of a single run: Hydra would wrap it in lines of its own


def run(cfg: DictConfig) -> dict[str, Any] | list[float] | str | None:
    """Run one experiment; its summary, or in a search what its objective comes to. In a sweep a failure is a
    line for the report instead of stopping the others."""
    global failure
    context = HydraConfig.get()
    folder = Path(context.runtime.output_dir)
    typed = context.overrides.task
    in_sweep = context.mode == RunMode.MULTIRUN
    if in_sweep:
        sweeping.end_with_parent()
        console.rule(f"cell {context.job.num}: {sweeping.cell_name(context)}", align="left")
    try:
        cfg = filled(cfg, typed)
        searched = names_of(cfg) if in_sweep and context.sweeper["_target_"] == SearchConf._target_ else None
        summary = execute(cfg, folder, title(cfg, part_names(cfg, context.runtime.choices, typed)))
        sweeping.summary = summary
        return summary if searched is None else values_of(summary, searched)
    except (Interrupted, KeyboardInterrupt) as stop:
        if in_sweep:  # ends the whole sweep, which an ordinary exception would not
            raise KeyboardInterrupt(*stop.args) from stop
        failure = stop
        return None
    except Exception as error:
        if not in_sweep:
            failure = error
            return None
        line = sweeping.reason(error)
        console.print(f"failed: {line}", soft_wrap=True)
        return line


# Not as a decorator: a launcher finds `run` by its name elsewhere, and need not send all it refers to.
hydra_main = hydra.main(version_base="1.3", config_path="pkg://fedpriv.conf", config_name="config")(run)
