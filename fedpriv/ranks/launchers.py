"""What `torchrun` and `srun` say of the processes they start."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Of a step that srun started; a batch script by itself has no number of tasks of a step.
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")


@dataclass(frozen=True)
class Place:
    rank: int
    count: int
    local: int  # rank on its machine
    here: int  # ranks on its machine


def place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process among those of its run, or None if it is alone."""
    for names in (_TORCHRUN, _SRUN):
        if all(name in environment for name in names):
            first = [re.match(r"\d+", environment[name]) for name in names]  # of "2(x3)" the 2
            found = Place(*(int(number[0]) if number else 0 for number in first))
            return found if found.count > 1 else None
    return None


def meeting_point(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Where the ranks of a run meet, for torch.distributed. srun says nothing of it: on the first host of the
    step, at a port that follows from its number."""
    if "MASTER_ADDR" in environment:
        return {}
    hosts = re.match(r"([^,\[]+)(?:\[(\d+))?", environment["SLURM_STEP_NODELIST"])
    assert hosts is not None
    job, step = (int(environment.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = 20_000 + (16 * job + step) % 20_000
    return {"MASTER_ADDR": hosts[1] + (hosts[2] or ""), "MASTER_PORT": str(port)}
