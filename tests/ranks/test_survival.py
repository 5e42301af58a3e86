"""Ctrl-C, a killed rank, and going on with another number of them."""

import os
import signal
from pathlib import Path

import pytest

from fedpriv.errors import Interrupted
from fedpriv.ranks import starting
from fedpriv.ranks.group import Lost
from fedpriv.session.recorder import Recorder
from tests.ranks.cases import left, run, without_pictures

CASE = ("dp=ldp", "rounds=4", "checkpoint.every=1", "transform=linear")


def test_a_stopped_and_a_killed_run_go_on_with_any_number_of_ranks(tmp_path: Path, monkeypatch):
    add = Recorder.add

    def in_round(number: int, do) -> None:
        def watched(recorder, result):
            if result.number == number:
                do()
            return add(recorder, result)

        monkeypatch.setattr(Recorder, "add", watched)

    def kill_the_last() -> None:
        other = starting.current.others[-1]
        other.kill()
        other.wait()

    folder = tmp_path / "run"
    with without_pictures():
        in_round(0, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted, match="stopped after round 1 of 4; the same command continues"):
            run(folder, *CASE, "processes=3")
        in_round(1, kill_the_last)
        with pytest.raises(Lost, match="process 1 of 2 has ended; the same command continues"):
            run(folder, *CASE, "processes=2")
        assert starting.current is None
        monkeypatch.setattr(Recorder, "add", add)
        run(folder, *CASE)
        assert left(folder) == left(run(tmp_path / "whole", *CASE))
