"""What a verdict takes into account: seeds, divergence, and which reading of a paper a number belongs to."""

import pytest

from fedpriv.reproduce import results, rows
from fedpriv.reproduce.compare import Answer, Comparison, compared, diverged, half_width
from fedpriv.reproduce.recipe import Recipe
from fedpriv.reproduce.reference import Printed
from fedpriv.reproduce.table import as_markdown, remarks
from fedpriv.studies.groups import Mean, mean_of


def answer(theirs: float, *ours: float, **more: bool) -> Answer:
    return Answer(Printed("p", "table1", "accuracy", (), theirs, "table", 2), mean_of(ours), **more)


def test_the_interval_of_three_seeds():
    """0.70, 0.72 and 0.74: mean 0.72, deviation 0.02, and t with two degrees of freedom is 4.3027."""
    assert half_width(mean_of([0.70, 0.72, 0.74])) == pytest.approx(4.3027 * 0.02 / 3**0.5, rel=1e-4)
    assert half_width(Mean(0.5, None, 1)) == 0


def test_a_verdict_waits_for_the_interval():
    assert answer(0.80, 0.72).verdict == "worse"  # one seed tells no more
    assert answer(0.80, 0.719, 0.720, 0.721).verdict == "worse"  # 0.72 with an interval of 0.0025
    assert answer(0.80, 0.70, 0.72, 0.75).verdict == "unclear"  # 0.723 with 0.063 reaches 0.77
    assert answer(0.80, 0.78, 0.79, 0.80).verdict == "within"


def test_what_diverged_is_not_worse():
    assert answer(0.80, 0.30, diverged=True).verdict == "diverged"
    assert answer(0.80, 0.81, diverged=True).verdict == "within"  # the paper reports the best round


@pytest.mark.parametrize(
    ("measured", "fell"),
    [
        ({"accuracy_global_best": 0.8, "accuracy_global_last": 0.39}, True),
        ({"accuracy_global_best": 0.8, "accuracy_global_last": 0.41}, False),
        ({"accuracy_global_best": 0.8, "accuracy_global_last": 0.8, "diverged": 1.0}, True),
        ({}, False),
    ],
)
def test_a_run_that_fell_below_half_of_its_best_diverged(measured, fell):
    assert diverged(rows.Row("", 0, "cpu", {}, measured, {}, {})) is fell


def test_a_fall_counts_in_the_view_that_the_paper_reports():
    """Under central DP a transform can serve its own client ever better and everybody else ever worse."""
    measured = {f"accuracy_local_{when}": 0.97 for when in ("best", "last")}
    measured |= {"accuracy_global_best": 0.68, "accuracy_global_last": 0.2}
    run = rows.Row("", 0, "cpu", {}, measured, {}, {})
    assert diverged(run, "global") and not diverged(run, "local")


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.02], "holds"),
        ([-0.02], "fails"),
        ([0.009], "ties"),
        ([0.02, 0.03], "holds"),
        ([0.05, -0.01], "ties"),  # one seed says so and the other not
        ([0.01, 0.02, 0.03], "ties"),  # 0.02 and an interval of 0.0248
        ([0.019, 0.020, 0.021], "holds"),
        ([-0.019, -0.020, -0.021], "fails"),
        ([0.004, 0.004, 0.004], "ties"),  # sure, and too little to speak of
    ],
)
def test_two_cells_are_compared_seed_by_seed(differences, verdict):
    assert compared(differences) == verdict


# -- readings

CONTENT = {
    "title": "one method, two readings",
    "base": "clients=2",
    "axes": {
        "reading": {"code": "lr=1", "printed": "lr=2"},
        "method": {"fedavg": "", "privatefl": "transform=linear"},
        "epsilon": {"2": "epsilon=2", "4": "epsilon=4", "6": "epsilon=6", "8": "epsilon=8"},
    },
    "values": {"accuracy": "accuracy_local_best", "accuracy_gain": "gain"},
    "table": {"rows": ["reading", "method"], "columns": ["epsilon"]},
    "claims": [{"text": "PrivateFL above FedAvg", "axis": "method", "values": ["privatefl", "fedavg"]}],
    "notes": "The code agrees,\n the text does not.",
}


@pytest.fixture
def both(tmp_path) -> Comparison:
    """Table 4 of PrivateFL, as if its text and its code differed: .691 and .776 are printed for epsilon 2."""
    own = Recipe("privatefl/table4", CONTENT)
    numbers = {"code": (0.70, 0.77), "printed": (0.70, 0.30)}
    for cell in own.cells("full", {"epsilon": ("2",)}):
        value = numbers[cell.facts["reading"]][cell.facts["method"] == "privatefl"]
        line = rows.of_summary({"accuracy_local_best": value}, [])
        rows.add(own, cell, 0, "full", f"{len(str(cell))}{value}", line, tmp_path)
    return Comparison(own, tmp_path)


def test_printed_numbers_belong_to_the_first_reading(both):
    verdicts = [a.verdict for a in both.answers() if a.ours and a.printed.metric == "accuracy"]
    assert verdicts == ["within", "within"]
    other = [a.verdict for a in both.answers("printed") if a.ours and a.printed.metric == "accuracy"]
    assert sorted(other) == ["within", "worse"]


def test_every_reading_stands_in_the_table_with_its_own_gain(both):
    ours, printed = both.of_cell(("printed", "privatefl", "2"), "accuracy", "accuracy_local_best")
    assert (ours.mean, printed.value) == (0.30, 0.776)
    gains = {
        a.printed.fact("reading"): a
        for r in ("code", "printed")
        for a in both.answers(r)
        if a.ours and a.printed.metric == "accuracy_gain" and a.printed.fact("epsilon") == "2"
    }
    assert {k: round(a.ours.mean, 2) for k, a in gains.items()} in ({}, {"code": 0.07, "printed": -0.40})
    text = as_markdown(both)
    assert "| code | privatefl | .770 (.776) |" in text and "| printed | privatefl | .300 (.776) |" in text


def test_claims_are_told_by_reading_and_counted_by_the_first(both):
    held = {h.reading: h for h in both.held() if h.view == "local"}
    assert (held["code"].verdict, held["printed"].verdict) == ("holds", "fails")
    assert [h.reading for h in both.held_in_own_view()] == ["code"]
    texts = "\n".join(remarks(both))
    assert "holds in the local view, reading code (1 hold, 0 tie, 0 fail, 1 seed)" in texts
    assert "fails in the local view, reading printed (0 hold, 0 tie, 1 fail, 1 seed)" in texts
    assert "notes     The code agrees, the text does not." in texts


def test_the_section_tells_readings_papers_and_notes(both):
    text = results.section([both])
    assert "| privatefl/table4 | code | 2 | 1 |" in text and "| privatefl/table4 | printed | 2 | 1 |" in text
    assert "| PrivateFL | 2 | 2 | 0 | 0 | 0 | 0 | 1, 0, 0 | 0.0 |" in text
    assert "- PrivateFL, table4: The code agrees, the text does not." in text


def test_a_scale_may_leave_combinations_out():
    own = Recipe("privatefl/table4", CONTENT | {"scales": {"cpu": {"omit": [{"reading": "printed"}]}}})
    assert {cell.facts["reading"] for cell in own.cells("cpu")} == {"code"}
    assert {cell.facts["reading"] for cell in own.cells("full")} == {"code", "printed"}
