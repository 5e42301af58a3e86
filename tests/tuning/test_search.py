"""hydra/sweeper=optuna: it chooses by the objective, continues after a kill, and says what it costs."""

import json
from pathlib import Path

import pytest

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
pytest.importorskip("optuna")

RUN = (
    "run",
    "-m",
    "hydra/sweeper=optuna",
    "model.sizes=[4]",
    "clients=3",
    "rounds=1",
    "batch_size=256",
    "threads=1",
)
LR = "lr=tag(log,interval(0.01,2))"


def search(folder: Path) -> dict:
    (file,) = folder.glob("outputs/runs/search-*.json")
    return json.loads(file.read_text())


def runs(folder: Path) -> dict[str, dict]:
    return {f.parent.name: json.loads(f.read_text()) for f in folder.glob("outputs/runs/*/summary.json")}


def test_it_chooses_on_validation_data_and_continues_after_a_kill(fedpriv, tmp_path, monkeypatch):
    call = (*RUN, "hydra.sweeper.n_trials=4", "validation=0.3", LR)
    done = fedpriv(*call)
    assert done.code == 0, done.err
    found, cells = search(tmp_path), runs(tmp_path)
    assert len(cells) == found["trials"] == 4
    best = max(cells.values(), key=lambda s: s["accuracy_global_validation"])
    assert found["best"][0]["values"] == [best["accuracy_global_validation"]]
    assert json.loads((Path(found["best"][0]["folder"]) / "summary.json").read_text()) == best
    one = best["epsilon_provable"]
    assert found["epsilon_one_run"] == pytest.approx(one) and found["epsilon_search"] > 1.5 * one
    assert "the whole search epsilon" in done.out and "sweep: 4 of 4" in done.out

    again = fedpriv(*call)  # it is done: nothing is run
    assert again.code == 0 and "4 of its trials are done" in again.out and "sweep: 0 of 0" in again.out

    other = tmp_path / "killed"
    other.mkdir()
    monkeypatch.chdir(other)
    from fedpriv.session import training

    train, calls = training.train, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(training, "train", killed)
    assert fedpriv(*call).code == 130
    assert len(runs(other)) == 2
    monkeypatch.setattr(training, "train", train)
    went_on = fedpriv(*call)
    assert went_on.code == 0 and "2 of its trials are done" in went_on.out, went_on.err
    assert sorted(runs(other)) == sorted(cells)  # the same trials, and no others
    assert search(other)["best"][0]["params"] == found["best"][0]["params"]


def test_a_random_number_of_random_trials_costs_less_than_all_of_them(fedpriv, tmp_path):
    law = ("hydra.sweeper.trials_law=geometric", "hydra.sweeper.n_trials=3")
    assert "hydra/sweeper/sampler=random" in fedpriv(*RUN, *law, "validation=0.3", LR).err
    done = fedpriv(*RUN, *law, "hydra/sweeper/sampler=random", "validation=0.3", LR)
    assert done.code == 0, done.err
    found = search(tmp_path)
    assert found["trials"] >= 1 and "geometric of mean 3" in found["search_is"]
    assert found["epsilon_search"] > found["epsilon_one_run"]


def test_several_objectives(fedpriv, tmp_path):
    both = ("objective=[accuracy_global_last,uplink_bytes]", "hydra.sweeper.direction=[maximize,minimize]")
    done = fedpriv(*RUN, "hydra.sweeper.n_trials=2", *both, "dp=none", "lr=0.01,0.1")
    assert done.code == 0, done.err
    assert all(len(b["values"]) == 2 for b in search(tmp_path)["best"])
    assert "picked on test data" in done.err


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ((LR,), "set validation=0.1"),
        ((LR, "objective=accuracy"), "no number of summary.json"),
        ((LR, "objective=[emd,seconds]"), "give a direction for each"),
        (("objective=emd",), "values to choose from"),
        ((LR, "hydra.sweeper.trials_law=normal"), "choose one of fixed, geometric"),
        ((LR, "hydra.sweeper.n_trials=0"), "at least 1"),
    ],
)
def test_a_mistake_is_one_line(fedpriv, wrong, expected):
    done = fedpriv(*RUN, "hydra.sweeper.n_trials=1", *wrong)
    assert done.code == 2 and expected in done.err and "Traceback" not in done.err
    assert len(done.err.splitlines()) == 1, done.err
