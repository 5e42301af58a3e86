"""Accuracy against privacy, time and traffic, and of single clients: means of hand-made runs."""

import math

import pytest

from fedpriv.errors import UserError
from fedpriv.figures import accuracy, clients
from fedpriv.studies import reader
from tests.helpers.runs import put


def runs_in(folder):
    return reader.find([folder])[0]


@pytest.fixture
def study(tmp_path):
    """Two budgets and no privacy, two aggregators, two seeds: seed 1 is 0.25 better, and twice as slow."""
    for seed in (0, 1):
        more = {"seconds": 1.0 + seed}
        for epsilon, agg, value in (
            (2, "mean", 0.25),
            (8, "mean", 0.5),
            (2, "size", 0.375),
            (8, "size", 0.625),
        ):
            place = tmp_path / "s" / f"{agg}{epsilon}{seed}"
            told = (f"agg={agg}", f"epsilon={epsilon}", f"seed={seed}")
            put(place, *told, accuracies=[0.125, value + seed / 4], **more)
        put(
            tmp_path / "s" / f"none{seed}",
            "dp=none",
            f"seed={seed}",
            accuracies=[0.5, 0.75 + seed / 8],
            **more,
        )
    return tmp_path / "s"


def test_accuracy_against_epsilon(study):
    drawn = accuracy.draw(runs_in(study), by=["aggregator"])
    names = ("dp", "aggregator", "epsilon", "accuracy_global", "seeds")
    assert [tuple(row[n] for n in names) for row in drawn.rows] == [
        ("ldp", "mean", 2.0, 0.375, 2),
        ("ldp", "mean", 8.0, 0.625, 2),
        ("ldp", "size", 2.0, 0.5, 2),
        ("ldp", "size", 8.0, 0.75, 2),
        ("none", "mean", "", 0.8125, 2),
    ]
    assert drawn.rows[0]["accuracy_std_over_seeds"] == pytest.approx(0.25 / math.sqrt(2))
    (axes,) = drawn.figure.axes
    (level,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert set(level.get_ydata()) == {0.8125}
    labels = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert labels == ["LDP, aggregator=mean", "LDP, aggregator=size", "no DP, aggregator=mean"]


def test_rounds_seconds_and_bytes(study):
    runs = [run for run in runs_in(study) if run.values["epsilon"] == 8 and run.private]
    for x, places in (("round", [1, 2]), ("seconds", [1.5, 3.0]), ("uplink", [1.0, 2.0])):
        rows = accuracy.draw(runs, x=x, by=["aggregator"]).rows
        assert [(r["aggregator"], r[x], r["accuracy_global"]) for r in rows] == [
            ("mean", places[0], 0.125),
            ("mean", places[1], 0.625),
            ("size", places[0], 0.125),
            ("size", places[1], 0.75),
        ]


def test_a_panel_for_each_value(fedpriv, study, tmp_path):
    done = fedpriv("figure", "accuracy", "s", "x=round", "facet=epsilon", "by=agg", "dp=ldp")
    assert done.code == 0 and "from 8 runs" in done.out, "dp=ldp chooses runs"
    assert "no finished run agrees" in fedpriv("figure", "accuracy", "s", "epsilon=5").err
    runs = [run for run in runs_in(study) if run.private]
    drawn = accuracy.draw(runs, x="round", facet="epsilon", by=["aggregator"])
    assert [axes.get_title() for axes in drawn.figure.axes] == ["epsilon 2", "epsilon 8"]
    ends = [[line.get_ydata()[-1] for line in axes.lines] for axes in drawn.figure.axes]
    assert ends == [[0.375, 0.5], [0.625, 0.75]]
    assert {row["epsilon"] for row in drawn.rows} == {2.0, 8.0}


def test_several_folders_are_one_figure(fedpriv, study, tmp_path):
    put(tmp_path / "other" / "x", "agg=mean", "epsilon=4", "seed=0", accuracies=[0.5, 0.5625])
    done = fedpriv("figure", "accuracy", "s", "other", "by=agg", "out=both.png")
    assert done.code == 0 and "from 11 runs" in done.out
    assert "ldp,none,mean,4.0,0.5625,,1,0" in (tmp_path / "both.csv").read_text().splitlines()


def test_a_diverged_run_is_a_cross_and_in_no_mean(study):
    put(study / "bad", "agg=mean", "epsilon=8", "seed=2", accuracies=[0.25, 0.125], loss=math.inf)
    drawn = accuracy.draw(runs_in(study), by=["aggregator"])
    (row,) = [r for r in drawn.rows if (r["aggregator"], r["epsilon"]) == ("mean", 8.0)]
    assert (row["accuracy_global"], row["seeds"], row["diverged"]) == (0.625, 2, 1)
    (axes,) = drawn.figure.axes
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([8.0], [0.125])
    assert "diverged" in axes.get_title()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "differ in aggregator"),
        ({"by": ["aggregator"], "x": "model"}, "x=model: choose round, seconds, uplink"),
        ({"by": ["aggregator"], "facet": "colour"}, "facet=colour: no run has this key"),
        ({"by": ["aggregator"], "view": "mine"}, "view=mine"),
    ],
)
def test_mistakes(study, options, words):
    with pytest.raises(UserError, match=words):
        accuracy.draw(runs_in(study), **options)


# -- single clients


def people(folder, *who: tuple[float, float, int, int]) -> None:
    """(accuracy, budget, samples, main class) of every client; the first round was worse."""
    lines = [
        "round,client,participated,samples,train_loss,accuracy_local,loss_local,epsilon_spent,epsilon_budget"
    ]
    for round_ in (1, 2):
        for k, (value, budget, size, _) in enumerate(who):
            lines.append(f"{round_},{k},1,{size},1,{value if round_ == 2 else 0},1,1,{budget}")
    (folder / "clients.csv").write_text("\n".join(lines) + "\n")
    split = ["client,side,samples,class_0,class_1"]
    for side in ("train", "test"):
        for k, (_, _, size, main) in enumerate(who):
            split.append(f"{k},{side},{size},{size - 1 if main == 0 else 1},{size - 1 if main == 1 else 1}")
    (folder / "partition.csv").write_text("\n".join(split) + "\n")


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("budget", [("1", 2, 0.25), ("10", 2, 0.75)]),
        ("size", [("10", 2, 0.5), ("30", 2, 0.5)]),
        ("class", [("0", 3, 0.5), ("1", 1, 0.5)]),
        ("none", [("all clients", 4, 0.5)]),
        ("", [("1", 2, 0.25), ("10", 2, 0.75)]),
    ],
)
def test_who_pays(tmp_path, group, expected):
    place = put(tmp_path / "s" / "r")
    people(place, (0.125, 1, 10, 0), (0.375, 1, 30, 0), (0.875, 10, 10, 0), (0.625, 10, 30, 1))
    rows = clients.draw(runs_in(tmp_path / "s"), group=group).rows
    found = [(row[group or "budget"], row["clients"], row["mean"]) for row in rows]
    if group == "class":
        assert [(name, n) for name, n, _ in found] == [(name, n) for name, n, _ in expected]
        assert found[1][2] == 0.625
    else:
        assert found == expected


def test_seeds_stand_together_and_lines_apart(tmp_path):
    for seed in (0, 1):
        for agg in ("mean", "size"):
            place = put(tmp_path / "s" / f"{agg}{seed}", f"agg={agg}", f"seed={seed}")
            people(place, (0.25, 1, 10, 0), (0.5 + seed / 4, 1, 10, 0))
    rows = clients.draw(runs_in(tmp_path / "s"), by=["aggregator"], group="none").rows
    assert [(r["aggregator"], r["clients"], r["seeds"], r["most"]) for r in rows] == [
        ("mean", 4, 2, 0.75),
        ("size", 4, 2, 0.75),
    ]
    with pytest.raises(UserError, match="differ in aggregator"):
        clients.draw(runs_in(tmp_path / "s"))


def test_many_budgets_are_divided():
    even = clients._edges([float(n) for n in range(1, 17)], "size")
    assert [(low, high) for _, low, high in even] == [(1, 4), (5, 8), (9, 12), (13, 16)]
    wide = clients._edges([0.1, 0.11, 0.12, 0.13, 0.14, 9.0, 10.0], "budget")
    assert [name for name, _, _ in wide] == ["0.1 to 0.14", "9 to 10"], "two kinds of clients, not quarters"


def test_a_run_without_its_clients_is_named(tmp_path):
    put(tmp_path / "s" / "r")
    with pytest.raises(UserError, match=r"partition\.csv cannot be read"):
        clients.draw(runs_in(tmp_path / "s"))


def test_labels_legend_and_title_do_not_meet(study):
    runs = [run for run in runs_in(study) if run.private]
    figure = accuracy.draw(runs, x="round", facet="epsilon", by=["aggregator"]).figure
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.y0 >= 0
    for axes in figure.axes:
        assert axes.xaxis.label.get_text() == "round"
        assert axes.xaxis.label.get_window_extent().y0 >= legend.y1
        assert axes.title.get_window_extent().y1 <= figure._suptitle.get_window_extent().y0
