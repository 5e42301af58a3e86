"""The Python door, and parts of one's own: they go in, and out, without friction."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import fedpriv as door
from fedpriv import api
from fedpriv.config import catalogue
from fedpriv.config.checks import check
from fedpriv.config.composing import plan, without_config_dir
from fedpriv.config.identity import of_config
from fedpriv.config.options import filled
from fedpriv.datasets.commands import data_list
from fedpriv.errors import UserError
from fedpriv.session import screen
from tests.conftest import SMALL, only_committed_results

MINE = """
from fedpriv.aggregators.base import Aggregator


class Trimmed(Aggregator):
    def __init__(self, *, trim: int = 1, how: object = len):
        self.trim = trim

    def __call__(self, uploads, round_):
        return uploads.sort(0).values[self.trim : len(uploads) - self.trim].mean(0)
"""
SWAPPED = ("agg=pfa", "aggregator._target_=mine_trimmed.Trimmed")


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    """A part of one's own in the working folder, and an option in YAML for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_trimmed", raising=False)
    (tmp_path / "mine_trimmed.py").write_text(MINE)
    (tmp_path / "own" / "aggregator").mkdir(parents=True)
    (tmp_path / "own" / "aggregator" / "outer.yaml").write_text(
        "# The mean without the outermost.\n#   trim: how many\n_target_: mine_trimmed.Trimmed\n"
    )
    return tmp_path


# -- Python


def test_the_examples_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(api)
    assert tried >= 10 and not failed


def test_importing_is_cheap_and_names_are_there():
    code = (
        "import sys, fedpriv; heavy = {'torch', 'hydra', 'pandas', 'opacus'} & set(sys.modules); "
        "assert not heavy, heavy; assert set(fedpriv.__all__) <= set(dir(fedpriv))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (Path(door.__file__).parent / "py.typed").exists()
    assert all(callable(getattr(door, name)) for name in door.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute nothing"):
        door.nothing  # noqa: B018


def test_python_and_the_command_line_make_the_same_run(fedpriv, tmp_path):
    done = door.run(*SMALL, "dp=ldp", quiet=True)
    assert not screen.console.quiet and list(done.metrics["round"]) == [1, 2, 3]
    assert done.privacy["unit"] == "sample" and len(done.clients) == 12
    assert "already done" in fedpriv("run", *SMALL, "dp=ldp").out
    assert (tmp_path / done.folder / "summary.json").exists()
    assert done.summary["identity"] == of_config(door.compose(*SMALL, "dp=ldp"))
    (row,) = door.results().to_dict("records")
    assert row["accuracy_global_last"] == done.summary["accuracy_global_last"] and row["dp_variant"] == "ldp"


@pytest.mark.parametrize(
    "value", [1, 1.5e-7, True, None, "a b", "it's", "back\\slash\\", "it\\'s", "x=1,y", "${lr}", [1, 2], ""]
)
def test_a_keyword_arrives_as_it_is(value):
    given = door.compose(**{"budget": "list", "+budget.extra": value}).budget
    assert OmegaConf.to_container(given, resolve=False)["extra"] == value


def test_a_mistake_in_python_is_one_line():
    for wrong in (
        lambda: door.compose("clents=3"),
        lambda: door.compose("x=[1"),
        lambda: door.run("agg.kk=3", quiet=True),
        lambda: door.build("clients=0"),
        lambda: door.build(door.compose(), rounds=3),
        lambda: door.compose(lr=object()),
        lambda: door.sweep("clents=1,2"),
    ):
        with pytest.raises(UserError) as problem:
            outcome = wrong()
            raise UserError(str(outcome[0].error))  # of a sweep
        assert "\n" not in str(problem.value) and str(problem.value) != "None"


def test_a_cell_that_fails_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, right = door.sweep(*SMALL, "dp=none", "rounds=1", clients=[100_000, 4], quiet=True)
    assert "clients" in wrong.error and not wrong.summary
    assert right.error is None and "clients=4" in right.overrides and len(right.metrics) == 1


# -- another _target_


def test_swapping_the_target_drops_what_the_old_option_had(mine):
    node = door.compose(*SWAPPED).aggregator
    assert dict(node) == {"_target_": "mine_trimmed.Trimmed", "trim": 1}  # an object cannot be written
    assert door.compose(*SWAPPED, "agg.trim=2").aggregator.trim == 2
    check(door.compose(*SWAPPED))
    budget = door.compose("budget=mixgauss1", "budget._target_=fedpriv.budgets.constant.Constant")
    assert "weights" not in budget.budget and budget.budget.use == "own"
    assert OmegaConf.to_container(door.compose("agg=pfa"))["aggregator"]["k"] == 1


@pytest.mark.parametrize("typed", ["agg.k=1", "agg.k=7", "+aggregator.k=2", "++agg.k=2"])
def test_what_was_typed_is_never_dropped(mine, fedpriv, typed):
    refused = fedpriv("run", *SMALL, *SWAPPED, typed)
    assert refused.code == 2 and "no such option of Trimmed; it has trim, how" in refused.err
    assert refused.err.count("\n") == 1 and not (mine / "outputs").exists()


def test_a_file_with_a_wrong_key_is_refused(mine):
    """Only a _target_ on the command line makes the file's other keys old."""
    (mine / "own" / "aggregator" / "wrong.yaml").write_text("_target_: mine_trimmed.Trimmed\nk: 1\n")
    with pytest.raises(UserError, match="no such option of Trimmed"):
        check(door.compose("agg=wrong", config_dir="own"))


def test_the_folder_says_which_part_it_was(mine):
    name = plan([*SMALL, *SWAPPED]).folder.name
    assert name.startswith("digits-mlp-ldp-Trimmed-c4-")
    assert plan([*SMALL, "agg=outer"], "own").folder.name.startswith("digits-mlp-ldp-outer-c4-")
    assert plan([*SMALL, "agg=pfa"]).folder.name.startswith("digits-mlp-ldp-pfa-c4-")


def test_filling_in_twice_changes_nothing(mine):
    once = door.compose(*SWAPPED)
    assert filled(once) == once and of_config(filled(once)) == of_config(once)


# -- options of one's own


def test_own_yaml_works_in_every_command_that_composes(mine, fedpriv):
    own, folder = ("--config-dir", "own", "dp=none"), {"config_dir": "own", "quiet": True}
    assert fedpriv("run", *own, *SMALL, "agg=outer").code == 0
    assert "already done" in fedpriv("run", "--config-dir=own", *own[2:], *SMALL, "agg=outer").out
    assert door.run(*SMALL, "dp=none", "agg=outer", "agg.trim=1", **folder).metrics.shape[0] == 3
    both = fedpriv("run", "-m", *own, *SMALL, "agg=mean,outer", "agg.trim=1")
    assert "no such option of Mean" in both.err + both.out
    swept = fedpriv("run", "-m", *own, *SMALL, "agg=outer", "agg.trim=0,1")
    assert swept.code == 0 and "aggregator.trim=0" in swept.out and "++" not in swept.out
    assert "no differential privacy" in fedpriv("privacy", *own, *SMALL, "agg=outer").out
    assert "trim: 3" in fedpriv("run", "--cfg", "job", *own, "agg=outer", "agg.trim=3").out
    assert "outer" in fedpriv("run", *own, "--help").out
    listed = fedpriv("list", *own[:2], "aggregator").out
    assert "without the outermost" in listed and "outer.trim=1: how many (a whole number" in listed


@pytest.mark.parametrize("command", ["run", "privacy"])
def test_a_folder_that_is_not_there_is_one_line(fedpriv, command):
    refused = fedpriv(command, "--config-dir", "nowhere")
    assert refused.code == 2 and "nowhere" in refused.err and refused.err.count("\n") == 1


def test_the_flag_needs_a_folder():
    assert without_config_dir(["a=1", "--config-dir=x", "b=2"]) == (["a=1", "b=2"], "x")
    with pytest.raises(UserError):
        without_config_dir(["-cd"])


def test_a_data_set_is_a_class_and_a_file(tmp_path, monkeypatch, capsys):
    """`fedpriv data` and `fedpriv features` know a new one from conf/dataset alone."""
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "another.yaml").write_text(
        "# One more.\n_target_: fedpriv.datasets.mnist_sets.FashionMNIST\n"
    )
    monkeypatch.setattr(catalogue, "files", lambda package: tmp_path)
    kept = (catalogue.written, catalogue.contents, catalogue.targets)
    for each in kept:
        each.cache_clear()
    try:
        assert data_list(tmp_path) == 0
    finally:
        for each in kept:
            each.cache_clear()
    shown = capsys.readouterr().out
    assert "fmnist" in shown and not re.search("^│ digits", shown, re.MULTILINE)


# -- what is shown


def test_help_shows_every_value_and_no_recipe(fedpriv):
    text = fedpriv("run", "--help", "agg=pfa").out
    assert "centred: false" in text and "clip_norm: ${clip_norm}" in text and "hydra:" not in text
    assert "paper" not in text.split("what this command would run")[0].split("groups")[1].split("values")[0]
    assert "centred: false" in fedpriv("run", "--cfg", "job", "agg=pfa").out
    resolved = fedpriv("run", "--cfg", "job", "--resolve", "--package", "dp_variant").out
    assert "clip_norm: 2.0" in resolved and "clients" not in resolved
    assert "sweep" in fedpriv("run", "--cfg", "hydra").out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedpriv run agg=pfa agg.", ["agg.k=", "agg.rank1=", "agg.centred=", "agg.projection=",
                                      "agg.division=", "agg.fraction="]),
        ("fedpriv run model=cnn model.no", ["model.norm="]),
        ("fedpriv run nothing=1 model.no", []),
        ("fedpriv run checkpoint.", ["checkpoint.every="]),
        ("fedpriv run pap", []),
    ],
)  # fmt: skip
def test_tab_completion_knows_the_values_of_a_part(fedpriv, monkeypatch, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    assert fedpriv("-sc", "query=bash").out.split() == expected


def test_results_of_ones_own_fail_no_test(tmp_path):
    rows = tmp_path / "outputs" / "reproduced"
    rows.mkdir(parents=True)
    (rows / "a.csv").write_text("1\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *name, "commit", "-qm", "rows"], cwd=tmp_path, check=True)
    only_committed_results(tmp_path)
    (rows / "a.csv").write_text("2\n")
    with pytest.raises(pytest.skip.Exception):
        only_committed_results(tmp_path)
