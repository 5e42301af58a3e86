"""Tables of one's own runs: means by hand, bold only beyond the spread, nothing mixed by accident."""

import csv
import json
import math

import pytest

from fedpriv.errors import UserError
from fedpriv.studies import compare, formats, reader
from fedpriv.studies.cells import Grid
from fedpriv.studies.compare import holm, pairs, remark
from tests.helpers.runs import put

MEAN, SIZE = "aggregator=mean", "aggregator=size"


@pytest.fixture
def fill(tmp_path):
    """Runs of one setting with these last accuracies, a seed each."""

    def make(*overrides, values, **more):
        for seed, value in enumerate(values):
            place = tmp_path / "s" / f"r{len(list(tmp_path.rglob('config.yaml'))):02}"
            put(place, *overrides, f"seed={seed}", accuracies=[0.125, value], **more)

    return make


def grid(folder, rows=("aggregator",), columns=("epsilon",), value="accuracy_global_last") -> Grid:
    return Grid(reader.find([folder / "s"])[0], list(rows), list(columns), value)


def test_mean_and_deviation_over_seeds(fill, tmp_path):
    fill(MEAN, "epsilon=2", values=[0.5, 0.75])
    fill(MEAN, "epsilon=8", values=[0.875])
    fill(SIZE, "epsilon=2", values=[0.25, 0.5])
    found = grid(tmp_path)
    assert found.rows == [("mean",), ("size",)] and found.columns == [("2",), ("8",)]
    mean = found.mean(("mean",), ("2",))
    assert mean.mean == 0.625 and mean.std == pytest.approx(0.25 / math.sqrt(2)) and mean.seeds == 2
    assert formats.plain(found, ("mean",), ("8",)) == "0.875 (n=1)"
    assert formats.plain(found, ("size",), ("8",)) == "" and formats.plain(found, ("mean",), ("2",)) == (
        "0.625 ±0.177 (n=2)"
    )


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.5, 0.75], []),  # 0.125 ahead, sqrt(2) * 0.177 is the deviation of a difference
        ([0.8125, 0.875], [("mean",)]),  # 0.344 ahead of 0.5 +- 0.177 and +- 0.044: 0.182
        ([0.875], []),  # one seed has no spread to lead by
    ],
)
def test_bold_is_only_what_leads_by_more_than_the_spread(fill, tmp_path, values, best):
    fill(MEAN, "epsilon=2", values=values)
    fill(SIZE, "epsilon=2", values=[0.375, 0.625])
    assert [row for row, _ in grid(tmp_path).best] == best


def test_where_less_is_better_the_lowest_is_bold(fill, tmp_path):
    fill(MEAN, values=[0.5, 0.5], seconds=1.0)
    fill(SIZE, values=[0.5, 0.5], seconds=2.0)
    found = grid(tmp_path, columns=(), value="seconds")
    assert found.best == {(("mean",), ())} and "the lowest of its column" in found.caption()


def test_runs_in_a_cell_may_differ_in_the_seed_alone(fedpriv, fill, tmp_path):
    fill(MEAN, "lr=0.1", values=[0.5])
    fill(MEAN, "lr=0.2", values=[0.75])
    done = fedpriv("table", "s", "rows=agg")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "differ in lr (0.1, 0.2)" in done.err and "lr=0.1" in done.err
    assert not (tmp_path / "s" / "table.csv").exists()
    assert fedpriv("table", "s", "rows=agg", "lr=0.2").code == 0
    assert "0.75" in (tmp_path / "s" / "table.csv").read_text()


def test_what_differs_between_cells_is_said(fedpriv, fill):
    fill(MEAN, "lr=0.1", values=[0.5])
    fill(SIZE, "lr=0.2", values=[0.75])
    done = fedpriv("table", "s", "rows=agg")
    assert done.code == 0 and "the cells also differ in lr (0.1, 0.2)" in done.err


def test_without_rows_and_columns_everything_that_differs_is_shown(fedpriv, fill, tmp_path):
    for epsilon in (2, 8):
        fill("dp=ldp", f"epsilon={epsilon}", values=[0.5, 0.5])
    fill("dp=none", values=[0.75, 0.75])
    assert fedpriv("table", "s", "out=t.csv").code == 0
    with open(tmp_path / "t.csv", newline="") as file:
        rows = [(r["dp_variant"], r["epsilon"], r["mean"], r["seeds"]) for r in csv.DictReader(file)]
    assert rows == [("ldp", "2", "0.5", "2"), ("ldp", "8", "0.5", "2"), ("none", "-", "0.75", "2")]
    assert not (tmp_path / "t.md").exists()


def test_a_diverged_run_is_marked_and_in_no_mean(fill, tmp_path):
    fill(MEAN, values=[0.5, 0.5])
    fill(SIZE, values=[0.75], loss=math.inf)
    found = grid(tmp_path, columns=())
    assert formats.plain(found, ("size",), ()) == "diverged" and found.mean(("size",), ()) is None
    assert not found.best and "infinite loss" in found.caption()
    assert "size,accuracy_global_last,,,1,1,0,0" in formats.as_csv(found)


def test_a_target_that_a_seed_never_reached(fill, tmp_path):
    fill(MEAN, values=[0.5], rounds_to_target=None)
    fill(SIZE, values=[0.5], rounds_to_target=12)
    found = grid(tmp_path, columns=(), value="rounds_to_target")
    assert formats.plain(found, ("mean",), ()) == "never" and formats.plain(found, ("size",), ()) == "12"


def test_latex_has_booktabs_rules_and_nothing_unescaped(fill, tmp_path):
    for epsilon in (2, 8):
        fill(MEAN, f"epsilon={epsilon}", values=[0.75, 0.75])
        fill(SIZE, f"epsilon={epsilon}", values=[0.5, 0.5])
    lines = formats.as_latex(grid(tmp_path, rows=("dp_variant", "aggregator"))).splitlines()
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"& & \multicolumn{2}{c}{$\varepsilon$} \\" in lines and r"\cmidrule(lr){3-4}" in lines
    assert r"dp\_variant & aggregator & 2 & 8 \\" in lines
    assert r"ldp & mean & \textbf{0.750 $\pm$0.000} & \textbf{0.750 $\pm$0.000} \\" in lines
    (caption,) = [line for line in lines if line.startswith(r"\caption")]
    assert r"$\sqrt{s_1^2 + s_2^2}$" in caption and caption.count("{") == caption.count("}")
    assert formats.escaped(r"a_b & 5% {x}~\y^2#$") == (
        r"a\_b \& 5\% \{x\}\textasciitilde{}\textbackslash{}y\textasciicircum{}2\#\$"
    )


def test_markdown(fill, tmp_path):
    fill(MEAN, values=[0.75, 0.75])
    fill(SIZE, values=[0.5, 0.5])
    text = formats.as_markdown(grid(tmp_path, columns=()))
    assert "| mean | **0.750 ±0.000** |\n| size | 0.500 ±0.000 |" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rows=aggregater"], "aggregater: no run has this key"),
        (["rows=agg", "columns=agg"], "name it once"),
        (["rows=seed"], "mean over seeds"),
        (["value=accuracy_globl_last"], "did you mean accuracy_global_last?"),
        (["seed=7"], "no finished run agrees"),
        (["test=z"], "test=z: choose one of t, wilcoxon"),
        (["out=s/r00/config.yaml/x"], "cannot be written"),
    ],
)
def test_mistakes(fedpriv, fill, arguments, words):
    fill(MEAN, values=[0.5])
    done = fedpriv("table", "s", *arguments)
    assert done.code == 2 and done.err.count("\n") == 1 and words in done.err


def test_a_folder_and_a_recipe_are_told_apart(fedpriv, fill, tmp_path):
    fill(MEAN, values=[0.5])
    (tmp_path / "pfa").mkdir()
    assert "no finished run of it" in fedpriv("table", "pfa").err, "a recipe's name is a recipe"
    assert "./pfa: no finished run there" in fedpriv("table", "./pfa").err.replace("error: pfa", "./pfa")
    assert "rows=" in fedpriv("table", "--help").out and "pfa/fig3" in fedpriv("table", "--help").out


# -- tests over seeds


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_the_paired_t_test_by_hand(fill, tmp_path):
    """Differences 0.1, 0.2, 0.3: t = 0.2 / (0.1 / sqrt 3); with two degrees p = 1 - t / sqrt(2 + t^2)."""
    fill(MEAN, "epsilon=2", values=[0.4, 0.6, 0.8])
    fill(SIZE, "epsilon=2", values=[0.3, 0.4, 0.5])
    (pair,) = pairs(grid(tmp_path), "t")
    assert (pair.one, pair.other, pair.seeds) == (("mean",), ("size",), 3)
    assert pair.difference == pytest.approx(0.2)
    t = 0.2 / (0.1 / math.sqrt(3))
    assert pair.p == pair.corrected == pytest.approx(1 - t / math.sqrt(2 + t**2))
    (pair,) = pairs(grid(tmp_path), "wilcoxon")
    assert pair.p == pytest.approx(0.25) and "no p can be below 0.25" in remark([pair], "wilcoxon")


def test_pairs_are_of_rows_in_each_column_or_of_columns(fill, tmp_path):
    for epsilon in (2, 4, 8):
        fill(MEAN, f"epsilon={epsilon}", values=[0.5, 0.625 + epsilon / 64])
    found = pairs(grid(tmp_path), "t")
    assert [(p.one, p.other) for p in found] == [(("2",), ("4",)), (("2",), ("8",)), (("4",), ("8",))]
    fill(SIZE, "epsilon=2", values=[0.25, 0.5])
    fill(SIZE, "epsilon=8", values=[0.25])
    found = pairs(grid(tmp_path), "t")
    assert [(p.where, p.why) for p in found] == [(("2",), ""), (("8",), "fewer than two seeds in common")]


def test_what_cannot_be_tested_says_why(fill, tmp_path):
    fill(MEAN, values=[0.5, 0.75])
    fill(SIZE, values=[0.25, 0.5])
    (pair,) = pairs(grid(tmp_path, columns=()), "t")
    assert pair.p is None and pair.why == "the same difference for every seed"
    fill("aggregator=sum", values=[0.5, 0.5], loss=math.inf)
    assert [p.why for p in pairs(grid(tmp_path, columns=()), "t")].count("diverged") == 2


def test_the_comparison_is_shown_and_written(fedpriv, fill, tmp_path):
    fill(MEAN, values=[0.75, 0.8125, 0.875])
    fill(SIZE, values=[0.25, 0.3125, 0.390625])
    done = fedpriv("table", "s", "--compare")
    assert done.code == 0 and compare.TESTS["t"] in done.out and "differ" in done.out
    with open(tmp_path / "s" / "table-compare.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["verdict"] == "differ" and row["one"] == "mean" and float(row["p corrected"]) < 0.05


def test_one_run_twice_counts_once_and_changed_numbers_are_refused(fill, tmp_path):
    fill(MEAN, values=[0.5])
    put(tmp_path / "s" / "copy", MEAN, "seed=0", accuracies=[0.125, 0.5])
    assert grid(tmp_path, columns=()).cells[("mean",), ()].seeds == 1
    put(tmp_path / "s" / "other", MEAN, "seed=0", accuracies=[0.125, 0.75])
    with pytest.raises(UserError, match="the same run with other numbers"):
        grid(tmp_path, columns=())


def test_an_epsilon_that_means_nothing_makes_no_column(fill, tmp_path):
    """Without privacy, and with budgets that are drawn: the first of both counts."""
    for more, values in (("dp_variant=none", [0.5]), ("budget=mixgauss1", [0.75])):
        fill(more, "epsilon=2", values=values)
        fill(more, "epsilon=8", values=[value + 0.0625 for value in values])
    fill("epsilon=8", values=[0.25])
    shown = grid(tmp_path, rows=("dp_variant", "budget"))
    told = {(row, column): shown.mean(row, column) for row in shown.rows for column in shown.columns}
    assert {key: mean.mean for key, mean in told.items() if mean} == {
        (("none", "-"), ("-",)): 0.5,
        (("ldp", "mixgauss1"), ("per client",)): 0.75,
        (("ldp", "constant"), ("8",)): 0.25,
    }


def test_epsilons_of_different_meaning_are_told_apart(fill, tmp_path):
    told = {
        "ldp": {"unit": "sample", "claim_holds": True, "epsilon_provable_max": 8.0},
        "cdp": {"unit": "client", "claim_holds": True, "epsilon_provable_max": 8.0},
        "duchi": {"unit": "client", "claim_holds": False, "epsilon_provable_max": 15600.0},
        "none": {},
    }
    for variant, privacy in told.items():
        fill(f"dp_variant={variant}", values=[0.5])
        folder = sorted((tmp_path / "s").iterdir())[-1]
        (folder / "privacy.json").write_text(json.dumps(privacy))
        if variant == "ldp":
            assert grid(tmp_path, rows=("dp_variant",)).remarks() == []
    assert grid(tmp_path, rows=("dp_variant",)).remarks() == [
        "epsilon protects one sample (ldp), one client (cdp, duchi), which is not the same protection",
        "the epsilon of duchi is claimed and not proved; provable: 15,600",
    ]
