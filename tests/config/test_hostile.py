"""What no careful user writes: refused in one line, or run; and never with nonsense in the files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpriv.building import build
from fedpriv.config.annotations import misfit
from fedpriv.config.catalogue import contents
from fedpriv.config.checks import check
from fedpriv.config.limits import Within, cut
from fedpriv.config.mistakes import explain
from fedpriv.config.options import allowed, target_of
from fedpriv.config.schema import GROUPS, Schema, described
from fedpriv.errors import UserError
from fedpriv.files import json_text
from fedpriv.session import screen
from tests.conftest import SMALL

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "scripts" / "fuzz.py"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model=[1]"], ["model=[1]", "fedpriv list model"]),
        (["logger=-1"], ["logger=-1", "fedpriv list logger"]),
        (["stage=[[]]"], ["stage=[[]]", "fedpriv list stage"]),
        (["samples_at=[[]]"], ["samples_at"]),
        (["lr=1e300"], ["lr=1e+300", "at most 1,000,000"]),
        (["clip_norm=1e39"], ["clip_norm=1e+39", "at most"]),
        (["clients=2147483648"], ["clients=2147483648", "at most 1,000,000"]),
        (["rounds=1" + "0" * 400], ["rounds=1000", "at most"]),
        (["seed=1" + "0" * 5000], ["digits"]),
        (["threads=100000"], ["threads=100000", "at most 1,024"]),
        (["clients=1000000", "rounds=1000000"], ["clients=1000000", "lower one"]),
        (["sample_rate=1e-300"], ["sample_rate=1e-300", "raise it"]),
        (["model.sizes=[2147483648]"], ["model.sizes=[2147483648]", "at most"]),
        (["model.sizes=[100000]"], ["model.sizes=[100000]", "at most 65,536"]),
        (["algorithm.server_lr=-1"], ["algorithm.server_lr=-1", "greater than 0"]),
        (["algorithm.server_momentum=1e6"], ["algorithm.server_momentum", "less than 1"]),
        (["algorithm.server_momentum=1" + "0" * 320], ["algorithm.server_momentum=1000"]),
        (["weight_decay=${run_name:}"], ["weight_decay=${run_name:}", "give a value"]),
        (["data_dir=${settings_help:}"], ["data_dir=${settings_help:}", "give a value"]),
        (["data_dir=${hydra:help.template}"], ["data_dir=", "give a value"]),
        (["rounds=${hydra:help.template}"], ["rounds=", "give a value"]),
        (["data_dir=" + "b" * 5000], ["data_dir=bbb", "1,000 characters"]),
        (["dataset.normalize=${nowhere}"], ["nowhere"]),
        (["hydra.run.dir=" + "a" * 300], ["aaa", "too long"]),
        (["hydra.run.dir=/proc/x/y"], ["/proc/x", "cannot be written"]),
        (["~rounds"], ["rounds is missing"]),
        (["resume=null"], ["resume=null", "needs a value"]),
        (["aggregator={_target_:os.getcwd}"], ["fedpriv list aggregator"]),
        (["aggregator._target_=os.getcwd"], ["aggregator._target_=os.getcwd", "has no setup"]),
        (["aggregator._target_=fedpriv.config"], ["aggregator._target_=fedpriv.config", "cannot be called"]),
        (["aggregator._target_=1"], ["aggregator=", "fedpriv list aggregator"]),
        (["min_clients=5"], ["no round can be trained", "min_clients=5"]),
        (["dataset.test_size=" + "1" * 200], ["dataset.test_size=111", "at most"]),
    ],
    ids=lambda v: v[0][:40],
)
def test_refused_in_one_line(fedpriv, overrides, words):
    done = fedpriv("run", *SMALL, *overrides)
    assert done.code == 2 and done.err.startswith("error: ") and done.err.count("\n") == 1, done.err
    assert len(done.err) < 500 and all(word in done.err for word in words), done.err


def test_every_number_at_the_top_has_limits_that_its_help_names():
    for key, default, text in described():
        number = default.replace(".", "").replace("e-", "").isdigit() or "seed" in key
        if number and key != "noise_seed":
            assert any(word in text for word in (" to ", "at most", "below")), key
    for name in ("participations", "local_steps", "threads", "target"):
        assert "most" in Schema.__dataclass_fields__[name].metadata


@pytest.mark.parametrize("group", GROUPS)
def test_every_number_of_an_option_has_limits_that_the_list_names(group):
    for content in contents(group).values():
        for key, words in allowed(group, content).items():
            if "number" in words:
                assert any(w in words for w in (" to ", "at most", "below")), (content, key)
                assert misfit(1e300, _hint(group, content, key)) is not None


def _hint(group, content, key):
    import inspect
    import typing

    target = target_of(group, content)
    own = target.__init__ if inspect.isclass(target) else target
    return typing.get_type_hints(own, include_extras=True)[key]


def test_limits_in_words():
    assert Within(least=1, most=5000).words() == "1 to 5,000"
    assert Within(above=0, most=1).words() == "above 0, at most 1"
    assert Within(least=0, below=1).broken(1.0) == "must be less than 1"
    assert Within(least=0).broken(1e300) == "must be at most 1,000,000,000,000"
    assert Within(above=0).broken(float("nan")) == "must be a finite number"
    assert Within(least=1, most=3).broken(2) is None
    assert cut("a\nb  c") == "a b c" and len(cut("x" * 900)) == 120


# -- square brackets


def test_square_brackets_are_no_markup(fedpriv, tmp_path):
    done = fedpriv("run", *SMALL, "rounds=1", "hydra.run.dir='a[/b]'")
    assert done.code == 0 and "a[/b]" in done.out, done.err
    done = fedpriv("run", "-m", *SMALL, "rounds=1", "dataset.normalize='[/x]',half")
    assert done.code == 1 and "1 of 2 cells done" in done.out and "[/x]" in done.out, done.err + done.out


def test_a_note_beside_the_spinner_may_hold_brackets(monkeypatch):
    shown = []
    monkeypatch.setattr(
        screen, "_spinner", [type("S", (), {"update": lambda self, text: shown.append(text)})()]
    )
    screen.Notes("[/what]", 3).show(1, "[/state]")
    assert "[/what]" in shown[0].plain and "[/state]" in shown[0].plain


# -- the current folder


@pytest.mark.parametrize(
    "how",
    [
        ["-m", "fedpriv"],
        pytest.param(["-c", "from fedpriv.commands.main import main; main()"], marks=pytest.mark.long),
    ],
)
def test_modules_in_the_current_folder_hide_nothing(tmp_path, how):
    for name in ("csv", "json", "yaml", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "mine.py").write_text(
        "from fedpriv.aggregators.mean import Mean\n\n\nclass Own(Mean):\n    pass\n"
    )
    safe = ["-P"] if how[0] == "-c" else []  # as the installed command: the folder is not on the path
    done = subprocess.run(
        [sys.executable, *safe, *how, "run", *SMALL, "rounds=1", "aggregator._target_=mine.Own"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**_environment(), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def _environment():
    import os

    return dict(os.environ)


# -- results that are none


def test_json_has_neither_infinity_nor_nan():
    text = json_text({"a": float("inf"), "b": [float("nan"), 1.5, {"c": -float("inf")}], "d": "inf"})
    assert json.loads(text) == {"a": None, "b": [None, 1.5, {"c": None}], "d": "inf"}
    assert "Infinity" not in text and "NaN" not in text


def test_an_infinite_loss_is_called_diverged(fedpriv, one_run):
    done = fedpriv("run", *SMALL, "dp=none", "lr=1e6", "model.activation=relu", "weight_decay=1e6")
    assert done.code == 0 and "diverged" in done.err
    for file in one_run().glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)


def test_memory_and_files_are_one_line():
    assert "not enough memory" in explain(MemoryError())
    assert "not enough memory" in explain(RuntimeError("DefaultCPUAllocator: can't allocate memory: x"))
    assert "None" not in explain(OSError(28, "No space left on device"))
    assert "larger than allowed" in explain(OSError(27, "File too large", "metrics.csv"))
    assert explain(ValueError("ours")) is None


def test_a_part_that_is_none_is_refused(config):
    with pytest.raises(UserError, match="gives str, which has no setup"):
        build(config(*SMALL, "aggregator._target_=os.getcwd"))
    with pytest.raises(UserError, match="what it can be given is unknown"):
        check(config(*SMALL, "aggregator._target_=builtins.dict"))


# -- the fuzzer


@pytest.mark.long
def test_the_fuzzer_counts(monkeypatch):
    monkeypatch.syspath_prepend(str(FUZZ.parent))
    import fuzz

    counts = fuzz.fuzz(12, 120.0)
    assert set(counts) == set(fuzz.COUNTS) and counts["tried"] <= 12
    assert counts["tracebacks"] == counts["nonsense"] == 0
    assert fuzz.configuration(7) == fuzz.configuration(7) != fuzz.configuration(8)


def test_the_fuzzer_sees_what_must_not_be(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FUZZ.parent))
    import fuzz

    monkeypatch.setattr("fedpriv.building.build", lambda cfg, prepare: np.zeros(0)[1])
    kind, why = fuzz.attempt(list(SMALL), False, tmp_path / "run")
    assert kind == "tracebacks" and "IndexError" in why
    monkeypatch.setattr("fedpriv.config.mistakes.explain", lambda error: "None: cannot be written")
    assert fuzz.attempt(list(SMALL), False, tmp_path / "run")[0] == "nonsense"
