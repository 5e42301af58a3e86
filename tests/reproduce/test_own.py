"""A recipe of one's own runs, resumes and is tabulated; what never came and what diverged is called so."""

import math

import pytest

from fedpriv.reproduce import recipe, rows
from fedpriv.reproduce.report import render
from fedpriv.reproduce.table import as_markdown, told
from tests.helpers.results import result

MINE = """\
title: "Two budgets"
base: dataset=digits model=logreg partition=iid clients=3 rounds=1 local_steps=1 threads=1
axes:
  epsilon: {2: epsilon=2, 8: epsilon=8}
table: {rows: [epsilon], columns: []}
"""


def test_it_runs_resumes_and_is_tabulated(fedpriv, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    first = fedpriv("reproduce", "./mine.yaml")
    assert first.code == 0 and "2 runs, 0 done, 2 to do" in first.out, first.err
    assert "`fedpriv table ./mine.yaml` shows them" in first.out
    assert "2 runs, 2 done, 0 to do" in fedpriv("reproduce", "mine.yaml").out
    shown = fedpriv("table", "./mine.yaml")
    assert shown.code == 0 and "Two budgets" in shown.out and "paper" not in shown.out
    assert sorted(p.name for p in (tmp_path / "mine").rglob("*.*")) == [
        "own-mine.csv", "own-mine.csv", "own-mine.md", "own-mine.tex",
    ]  # fmt: skip
    assert not (tmp_path / "outputs" / "reproduced").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("title: x\n", "axes is missing"),
        ("- 1\n", "no sound recipe"),
        ("title: [\n", "no sound recipe"),
        (MINE + "colour: red\n", "unknown keys"),
        (MINE.replace("rows: [epsilon]", "rows: [method]"), "the table shows"),
        (MINE.replace("epsilon=8", "epsilom=8"), "epsilom"),
    ],
)
def test_mistakes_are_one_line(fedpriv, tmp_path, content, words):
    if content:
        (tmp_path / "mine.yaml").write_text(content)
    done = fedpriv("reproduce", "./mine.yaml", "--dry-run")
    assert done.code == 2 and done.err.count("\n") == 1 and "Traceback" not in done.err
    assert words in done.err, done.err


# -- never, and diverged


def curve(*values: float) -> dict:
    return {
        "accuracy_global_last": values[-1],
        "accuracy_global_best": max(values),
        rows.CURVE: " ".join(f"{i}:{v}" for i, v in enumerate(values, 1)),
    }


def test_a_target_never_reached_is_no_speed_up_of_nothing(tmp_path):
    cell = recipe.load("fedpd/table1").cells()[0].facts
    ours, base = (tuple((cell | {"method": method}).values()) for method in ("fedprox", "fedavg"))
    made = result("fedpd/table1", tmp_path, {base: [curve(0.5, 0.9)], ours: [curve(0.1, 0.2)]})
    (rounds, speed_up) = [line for line in as_markdown(made).splitlines() if "fedprox | never" in line]
    assert rounds.startswith("| fedprox | never (192) |") and speed_up.startswith("| fedprox | never (1.5) |")
    page = render([made], tmp_path)
    assert page.count("never <small>(") == 2 and ".000 <small>" not in page
    assert told("speedup", 0.0) == "never" and told("accuracy_global_last", 0.0) == ".000"


def test_a_diverged_run_is_called_so_and_not_worse(tmp_path):
    numbers = {("fedavg", "2"): [{"accuracy_local_best": 0.1, "diverged": 1}], ("privatefl", "2"): [0.8]}
    made = result("privatefl/table4", tmp_path, numbers)
    own = made.recipe.values["accuracy"]
    assert math.isnan(made.value(("fedavg", "2"), own).mean)
    assert "diverged" in as_markdown(made) and "diverged" in render([made], tmp_path)
    verdicts = {a.verdict for a in made.answers() if a.ours and math.isnan(a.ours.mean)}
    assert verdicts == {"diverged"}
    held = made.held_in_own_view()
    assert not held, "a claim is neither held nor broken by a run that diverged"


def test_who_falls_in_the_other_view_has_not_diverged(tmp_path):
    """PrivateFL reports the local view, in which a transform may gain while the global one falls."""
    numbers = {"accuracy_local_best": 0.99, "accuracy_local_last": 0.99}
    numbers |= {"accuracy_global_best": 0.68, "accuracy_global_last": 0.2}
    made = result("privatefl/table4", tmp_path, {("privatefl", "2"): [numbers]})
    assert {a.verdict for a in made.answers()} == {"better", "not run"}


def test_a_row_says_whether_its_run_diverged(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "summary.json").write_text("{}")
    for loss, diverged in (("0.5", 0), ("inf", 1)):
        (tmp_path / "metrics.csv").write_text(f"round,accuracy_global,loss_global\n1,0.5,inf\n2,0.5,{loss}\n")
        assert rows.summary_of(tmp_path)["diverged"] == diverged
