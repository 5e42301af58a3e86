"""What launchers say, how work is shared, and what is refused in one line."""

from types import SimpleNamespace

import pytest
import torch

from fedpriv import compose
from fedpriv.errors import UserError
from fedpriv.ranks import starting
from fedpriv.ranks.group import ALONE, Ranks
from fedpriv.ranks.launchers import Place, meeting_point, place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host1",
}
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "gpu[07-08,11]",
    "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "2",
}  # fmt: skip


def test_launchers_say_where_a_process_is():
    assert place({}) is None
    assert place(TORCHRUN) == Place(5, 8, 1, 4) and meeting_point(TORCHRUN) == {}
    assert place(SRUN) == Place(5, 6, 1, 2)
    assert meeting_point(SRUN) == {
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(20_000 + (16 * 1234 + 2) % 20_000),
    }
    assert meeting_point(SRUN | {"SLURM_STEP_NODELIST": "one,two"})["MASTER_ADDR"] == "one"


def test_a_batch_script_without_srun_and_a_single_task_are_alone():
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1234"}
    assert place(script) is None
    assert place(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert place(TORCHRUN | {"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_item_is_one_ranks(count):
    ranks = Ranks()
    ranks.count = count
    shares = [list(ranks.share(range(5), rank)) for rank in range(count)]
    assert [item for share in shares for item in share] == list(range(5))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_has_everything():
    rows = torch.ones(2, 3)
    ALONE.complete([slice(0, 2)], rows)
    assert ALONE.share([4, 5]) == [4, 5] and ALONE.all_of("a") == ["a"] and ALONE.from_first(rows) is rows
    with starting.together(compose("clients=2")) as ranks:
        assert ranks is ALONE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["processes=0"], ["processes=0", "at least 1"]),
        (["processes=9", "clients=4"], ["processes=9", "clients=4"]),
        (["processes=null"], ["processes=null"]),
    ],
)
def test_too_few_and_too_many_are_refused(fedpriv, words, told):
    done = fedpriv("run", *words)
    assert done.code == 2 and done.err.count("\n") == 1
    assert all(text in done.err for text in told)


def test_what_a_launcher_has_started_is_not_started_again(monkeypatch):
    monkeypatch.setattr(starting, "current", SimpleNamespace(count=3, here=3))
    for words, told in (
        (["processes=2"], "one of 3 processes already"),
        (["clients=2"], "3 processes are more"),
    ):
        with pytest.raises(UserError, match=told), starting.together(compose(*words)):
            pass
