"""Shell manners: help, completion, words in the wrong form, and what a refusal leaves behind."""

import os

import pytest

from fedpriv.commands.main import COMMANDS
from fedpriv.config.schema import GROUPS
from tests.conftest import SMALL


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(fedpriv, tmp_path, command):
    done = fedpriv(command, "--help")
    assert done.code == 0 and "usage" in done.out and not done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["epsilon", "3"], "epsilon: write key=value, such as epsilon=3"),
        (["epsilon"], "epsilon: write key=value"),
        (["épsilon=3"], "épsilon=3: keys have plain letters; write key=value, such as epsilon=3"),
        (["dp_variant.bound=adaptive"], "dp_variant=cdp has it"),
        (["epsilon=1,2"], "add -m to run each"),
        (["--jobs", "2"], "--jobs 2: runs the cells of a sweep side by side; add -m"),
        (["-m", "--jobs", "0", "seed=0,1"], "--jobs 0: must be a whole number"),
        (["-m", "--jobs"], "--jobs : must be a whole number"),
    ],
)
def test_words_in_the_wrong_form_are_told_the_right_one(fedpriv, tmp_path, words, line):
    done = fedpriv("run", *words)
    assert done.code == 2 and line in done.err and done.err.count("\n") == 1, done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ["dataset=mnist", "dataset.download=false", "data_dir=empty"],
        ["dataset=features", "dataset.path=nowhere.npz"],
        ["dp=ddp", "dp_variant.bits=1"],
        ["noise_seed=os", "model.norm=batch"],
    ],
)
def test_what_is_refused_leaves_no_folder(fedpriv, tmp_path, wrong):
    done = fedpriv("run", *SMALL, *wrong)
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_removes_nothing_that_was_there(fedpriv, tmp_path):
    wrong = ("dataset=features", "dataset.path=nowhere.npz")
    for there in ("mine", "other"):
        (tmp_path / there).mkdir()
    (tmp_path / "other" / "notes.txt").write_text("keep")
    for there in ("mine", "other"):
        assert fedpriv("run", *SMALL, *wrong, f"hydra.run.dir={there}").code == 2
    assert (tmp_path / "mine").is_dir()
    assert (tmp_path / "other" / "notes.txt").read_text() == "keep"


def test_a_refused_cell_leaves_no_folder_and_others_go_on(fedpriv, tmp_path):
    done = fedpriv("run", "-m", *SMALL, "model.sizes=[8],[0]")
    assert done.code == 1 and "model.sizes=[0]: must be at least 1" in done.out
    runs = [folder for folder in (tmp_path / "outputs" / "runs").iterdir() if folder.is_dir()]
    assert len(runs) == 1 and (runs[0] / "summary.json").exists()


def test_jobs_run_cells_side_by_side(fedpriv, tmp_path):
    done = fedpriv("run", "-m", *SMALL[:3], "--jobs", "2", "seed=0,1")
    assert done.code == 0 and "sweep: 2 of 2 cells done" in done.out, done.out + done.err
    assert "threads" not in done.out


@pytest.fixture
def proposed(fedpriv, monkeypatch):
    def call(line):
        monkeypatch.setitem(os.environ, "COMP_LINE", line)
        return fedpriv("-sc", "query=bash").out.split()

    return call


def test_completion_knows_recipes_groups_and_data_sets(proposed):
    assert "pfa/fig3" in proposed("fedpriv reproduce pfa/")
    assert {"pfa", "pfa/fig3"} <= set(proposed("fedpriv table p"))
    assert "--jobs" in proposed("fedpriv reproduce --")
    assert set(GROUPS) <= set(proposed("fedpriv list "))
    assert proposed("fedpriv list agg") == ["aggregator"]
    assert proposed("fedpriv data ") == ["list", "fetch", "verify"]
    assert proposed("fedpriv data verify mn") == ["mnist"]
    assert "evaluate" in proposed("fedpriv ")


def test_square_brackets_of_a_description_are_shown(fedpriv, tmp_path):
    own = tmp_path / "mine" / "aggregator"
    own.mkdir(parents=True)
    (own / "odd.yaml").write_text("# Of [low, high] and [bold].\n_target_: fedpriv.aggregators.mean.Mean\n")
    assert "Of [low, high] and [bold]." in fedpriv("list", "aggregator", "--config-dir", "mine").out
    assert "[-1, 1]" in fedpriv("list", "dataset").out


def test_noise_that_drowns_whole_clients_is_remarked(fedpriv):
    done = fedpriv("privacy", "dp=cdp")
    assert done.code == 0 and "warning: noise will outweigh learning" in done.err
    assert "noise will" not in fedpriv("privacy", "dp=cdp", "clients=200", "model=logreg", "rounds=20").err
    assert "noise will" not in fedpriv("privacy", "dp=ldp").err
