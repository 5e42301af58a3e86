"""One run of a reproduction, wherever one of Hydra's launchers started it.

Hydra sweeps over the number of the cell; the overrides of each are in a file, because cells differ in more
than a product of comma lists can say.
"""

import json
from pathlib import Path

import hydra
from omegaconf import DictConfig

from fedpriv.commands import sweeping
from fedpriv.config.composing import plan
from fedpriv.config.names import register
from fedpriv.errors import Interrupted
from fedpriv.session.claim import STATUS

register()


def run_cell(told: DictConfig) -> None:
    from fedpriv.session.execution import execute

    sweeping.end_with_parent()
    overrides = json.loads(Path(told.cells).read_text())[told.cell]
    planned, text = plan(overrides), " ".join(overrides)
    folder = planned.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sweeping.note(folder / STATUS, text, None, execute(planned.config, folder, text))
    except (Interrupted, KeyboardInterrupt) as stop:
        raise KeyboardInterrupt(*stop.args) from stop  # ends the whole sweep
    except Exception as error:  # noted; the others go on
        sweeping.note(folder / STATUS, text, sweeping.reason(error), None)


# Not as a decorator, for the reason in commands/job.py.
_told = hydra.main(version_base="1.3", config_path="pkg://fedpriv.conf", config_name="reproduce")
hydra_worker = _told(run_cell)
