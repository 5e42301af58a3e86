"""One run gives the same bits whatever the number of ranks."""

from pathlib import Path

import pytest

from fedpriv.engine.fast import FastEngine
from fedpriv.ranks.starting import started_here
from tests.ranks.cases import CASES, left, run, without_pictures


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, tuple]:
    place = tmp_path_factory.mktemp("alone")
    with without_pictures():
        return {name: left(run(place / name, *case)) for name, case in CASES.items()}


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.long), 3])
def test_ranks_do_not_change_a_bit(count: int, alone: dict[str, tuple], tmp_path: Path, monkeypatch):
    train, shares = FastEngine.train, []

    def watched(engine, work, data, groups):
        shares.append(len(groups) / len(engine.groups(work, data)))
        return train(engine, work, data, groups)

    monkeypatch.setattr(FastEngine, "train", watched)
    with without_pictures(), started_here(count):
        for name, case in CASES.items():
            shares.clear()
            found = left(run(tmp_path / name, *case))
            for what, ours, one in zip(
                ("metrics", "bits", "clients", "privacy"), found, alone[name], strict=True
            ):
                assert ours == one, f"{name}: {what}"
            assert shares and max(shares) <= 0.5, f"{name}: the first rank trained more than its share"
