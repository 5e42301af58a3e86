"""A recipe of one's own runs, resumes and is tabulated; what never came and what diverged is called so."""

import math
from dataclasses import replace

import pytest

from fedpriv.reproduce import recipe, rows
from fedpriv.reproduce.compare import Comparison
from fedpriv.reproduce.draw import draw
from fedpriv.reproduce.recipe import Claim
from fedpriv.reproduce.report import render
from fedpriv.reproduce.table import as_markdown, counted, told
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
        (MINE + "colour: red\n", "unknown key colour"),
        (MINE + "claim: []\n", "did you mean claims?"),
        (MINE.replace("rows: [epsilon]", "rows: [method]"), "the table shows"),
        (MINE.replace("epsilon=8", "epsilom=8"), "did you mean epsilon?"),
        (
            MINE.replace("epsilon=8", "epsilon=8 rounds=-4"),
            "own/mine, epsilon=8: rounds=-4: must be at least 1",
        ),
        (MINE.replace("epsilon=8", "transform.alpha=pixel"), "transform.alpha=pixel: no such option"),
        (MINE.replace("epsilon=8", "aggregator._target_=nowhere.None"), "cannot be imported"),
        (MINE.replace("base: d", "base: [d").replace("threads=1", "threads=1]"), "overrides are one text"),
        (MINE + "when: [rounds=1]\n", "a list of two"),
        (MINE.replace("columns: []", "columns: epsilon"), "columns must be axes in brackets"),
        (MINE + "values: {accuracy: nosuch}\n", "there is no nosuch; there are accuracy_local_best"),
        (MINE + "figure: {x: nosuch}\n", "x: there is no nosuch; there are round, epsilon"),
        (MINE + "figure: {x: epsilon, y: nosuch}\n", "y: there is no nosuch"),
        (MINE + "figure: {y: accuracy}\n", "x is missing"),
        (MINE + "figure: {x: epsilon, line: nosuch}\n", "there is no nosuch; there are epsilon"),
        (MINE + "figure: {x: round}\n", "one line would be drawn through every epsilon"),
        (MINE + "claims: [{text: t, axis: epsilon, values: [8, 2], metric: foo}]\n", "no metric foo"),
        (MINE + "claims: [{text: t, axis: epsilon, values: [8, 2], onyl: {}}]\n", "did you mean only?"),
        (MINE + "claims: [{text: t, axis: epsilon, values: [8]}]\n", "values must be two or more"),
        (MINE + "claims: [epsilon]\n", "claims: epsilon is no {text, axis, values}"),
        (MINE + "claims: {text: t}\n", "claims must be a list, each line with a `-`"),
        (MINE + "notes: [a, b]\n", "notes must be a text"),
        (MINE.replace("columns: []", "columns: [], caption: x"), "table: unknown key caption"),
        (MINE.replace("8: epsilon=8", "2: epsilon=8"), "2 stands twice in line 4"),
        (MINE.replace("{2:", "{no:"), "put quotes around its name"),
        (MINE.replace("  epsilon: {", "  rounds: {").replace("[epsilon]", "[rounds]"), "rounds is a column"),
        (MINE.replace("rounds=1", "rounds=1 seed=4"), "seed is set for every run"),
        (MINE + "omit: [{epsilon: 2}, {epsilon: 8}]\n", "omit leaves no cell"),
        (MINE + "scales: {cpu: }\n", "scales: cpu must be a list of `name: value`"),
        (MINE + "scales: {fulll: {seeds: 3}}\n", "did you mean full?"),
        (MINE + "scales: {full: {seed: 3}}\n", "did you mean seeds?"),
        (MINE + "scales: {full: {seeds: three}}\n", "seeds: three is no whole number"),
        (MINE + "scales: {full: {seeds: 0}}\n", "seeds: 0 is no whole number of at least 1"),
    ],
)
def test_mistakes_are_one_line(fedpriv, tmp_path, content, words):
    if content:
        (tmp_path / "mine.yaml").write_text(content)
    done = fedpriv("reproduce", "./mine.yaml", "--dry-run")
    assert done.code == 2 and done.err.count("\n") == 1 and "Traceback" not in done.err
    assert words in done.err, done.err


def test_a_value_of_a_claim_may_be_written_otherwise(tmp_path):
    """8 is the axis's 8.0, in a claim and in what a scale runs."""
    content = MINE.replace("8: epsilon", "8.0: epsilon") + (
        "claims: [{text: t, axis: epsilon, values: [8, 2]}]\nscales: {cpu: {only: {epsilon: [8]}}}\n"
    )
    (tmp_path / "mine.yaml").write_text(content)
    mine = recipe.of_file(tmp_path / "mine.yaml")
    assert mine.claims[0].values == ("8.0", "2") and len(mine.cells("cpu")) == 1


def test_rows_of_an_edited_recipe_are_not_shown_as_its_own(fedpriv, tmp_path):
    """Two rounds instead of one are other runs: never a mean of both, and none of what is not asked for."""
    (tmp_path / "mine.yaml").write_text(MINE)
    fedpriv("reproduce", "./mine.yaml")
    (tmp_path / "mine.yaml").write_text(MINE.replace("rounds=1", "rounds=2"))
    early = fedpriv("table", "./mine.yaml")
    assert early.code == 2 and "no finished run" in early.err
    fedpriv("reproduce", "./mine.yaml")
    shown = fedpriv("table", "./mine.yaml")
    assert "2 rows" in shown.out and "runs      2, scale full, seeds a cell 1" in shown.out, shown.out


OWN = """\
from fedpriv.aggregators.base import Aggregator


class Halved(Aggregator):
    def __init__(self, *, by: float = 2.0):
        self.by = by

    def __call__(self, uploads, round_):
        return uploads.mean(0) / self.by
"""


def test_a_part_of_ones_own_runs_in_a_recipe(fedpriv, tmp_path):
    """Its identity as planned is that of its run, with what the class takes and with what the recipe sets."""
    (tmp_path / "halved.py").write_text(OWN)
    own = "aggregator._target_=halved.Halved"
    (tmp_path / "mine.yaml").write_text(
        MINE.replace("epsilon=2, 8: epsilon=8", f"{own}, 8: {own} aggregator.by=4")
    )
    done = fedpriv("reproduce", "./mine.yaml")
    assert done.code == 0 and "2 of 2 runs done" in done.out, done.out + done.err
    assert "2 runs, 2 done, 0 to do" in fedpriv("reproduce", "./mine.yaml").out


def test_a_claim_about_what_has_no_number_holds_in_part(tmp_path):
    """privatefl/table7: tanh with PrivateFL, tanh, relu under CDP; the first is not run."""
    cells = {("cdp", "relu"): 0.5, ("cdp", "tanh"): 0.6}
    numbers = {
        (dp, method, epsilon): {"accuracy_local_best": accuracy}
        for (dp, method), accuracy in cells.items()
        for epsilon in "2468"
    }
    made = result("privatefl/table7", tmp_path, numbers)
    claim = Claim("all", "method", ("tanh+privatefl", "tanh", "relu"), {"dp": "cdp"})
    held = made._held(claim, "local", "accuracy_local_best", "same rate")
    assert (held.holds, held.missing, held.verdict) == (4, ("tanh+privatefl",), "in part")
    assert counted(held).endswith("; no number of tanh+privatefl")
    whole = made._held(replace(claim, values=("tanh", "relu")), "local", "accuracy_local_best", "same rate")
    assert (whole.missing, whole.verdict) == ((), "holds")


def test_a_figure_of_accuracy_shows_what_the_recipe_means_by_it(fedpriv, tmp_path):
    values = "values: {accuracy: accuracy_local_last}\n"
    (tmp_path / "mine.yaml").write_text(MINE + values + "figure: {x: epsilon, y: accuracy}\n")
    assert fedpriv("reproduce", "./mine.yaml").code == 0
    shown = draw(Comparison(recipe.of_file(tmp_path / "mine.yaml"), tmp_path / "mine"))
    assert [axes.get_ylabel() for axes in shown.axes] == ["accuracy local last"]
    assert len(shown.axes[0].lines[0].get_xdata()) == 2


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
