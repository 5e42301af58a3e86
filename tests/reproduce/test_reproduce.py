"""`fedpriv reproduce` and `fedpriv table`: what is run, kept, compared and shown."""

import csv
import math
from pathlib import Path

import pytest

from fedpriv.errors import UserError
from fedpriv.reproduce import command, plan, recipe, rows
from fedpriv.reproduce.compare import Answer, Comparison
from fedpriv.reproduce.recipe import Recipe
from fedpriv.reproduce.reference import Printed
from fedpriv.reproduce.table import as_markdown, grid, number, remarks, write
from fedpriv.studies.groups import Mean
from tests.conftest import only_committed_results
from tests.helpers.results import result


def printed(value: float, metric: str = "accuracy") -> Printed:
    return Printed("p", "table1", metric, (), value, "table", 2)


@pytest.mark.parametrize(
    ("metric", "theirs", "ours", "verdict"),
    [
        ("accuracy", 0.8, 0.83, "within"),
        ("accuracy", 0.8, 0.831, "better"),
        ("accuracy", 0.8, 0.7, "worse"),
        ("accuracy_loss", 0.1, 0.2, "worse"),
        ("accuracy_loss", 0.1, 0.02, "better"),
        ("emd", 0.4, 0.42, "within"),
        ("emd", 0.4, 0.43, "worse"),
        ("rounds_to_target", 100, 94, "better"),
        ("rounds_to_target", 100, math.inf, "worse"),
        ("rounds_to_target", math.nan, math.inf, "within"),
        ("rounds_to_target", math.nan, 30, "better"),
        ("speedup", math.nan, 0.0, "within"),
        ("speedup", 1.5, 2.0, "better"),
        ("uplink_mb", 12, 14, "worse"),
        ("accuracy", 0.8, None, "not run"),
    ],
)
def test_verdicts(metric, theirs, ours, verdict):
    assert Answer(printed(theirs, metric), ours if ours is None else Mean(ours, None, 1)).verdict == verdict


# -- hand-made results


def of(done: Comparison, metric: str, **facts: str) -> Answer:
    found = [
        a
        for a in done.answers()
        if a.printed.metric == metric and facts.items() <= dict(a.printed.facts).items()
    ]
    (answer,) = found
    return answer


def test_gains_of_table_5_over_each_method_itself(tmp_path):
    pairs = {"fedbn": 0.10, "ppsgd": 0.02, "dp-scaffold": 0.3, "fedgn": 0.1}
    numbers = {}
    for method, gain in pairs.items():
        for i, epsilon in enumerate(("2", "4", "6", "8")):
            numbers[method, epsilon] = 0.5
            numbers[f"{method}+privatefl", epsilon] = 0.5 + gain + 0.01 * i
    done = result("privatefl/table5", tmp_path, numbers)
    quoted = {
        (dict(a.printed.facts)["dp"], dict(a.printed.facts)["stat"]): a.ours.mean
        for a in done.answers()
        if a.printed.artifact == "text-6.1.2"
    }
    assert quoted == pytest.approx(
        {
            ("cdp", "min"): 0.02,
            ("cdp", "max"): 0.13,
            ("cdp", "mean"): 0.075,
            ("ldp", "min"): 0.1,
            ("ldp", "max"): 0.33,
        }
    )
    assert of(done, "accuracy_gain", over="dp-scaffold", epsilon="8").ours.mean == pytest.approx(0.33)


def test_a_loss_is_taken_to_the_cell_without_privacy(tmp_path):
    numbers = {("a", "own", "1"): 0.95, ("a", "own", "inf"): 0.96}
    done = result("ldpfl/fig5", tmp_path, numbers)
    loss = of(done, "accuracy_loss", dataset="mnist")
    assert loss.ours.mean == pytest.approx(0.01) and loss.verdict == "within"
    assert of(done, "accuracy_loss", dataset="fmnist").verdict == "not run"


def test_from_which_epsilon_on(tmp_path):
    epsilons = ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]
    accuracies = [0.5, 0.88, 0.94, 0.94, 0.95, 0.95, 0.95, 0.96, 0.96, 0.96]
    numbers = {("a", "own", e): a for e, a in zip(epsilons, accuracies, strict=True)}
    done = result("ldpfl/fig5", tmp_path, numbers)
    assert of(done, "epsilon_stable_above", panel="a").ours.mean == 0.3
    assert of(done, "epsilon_drop_below", panel="a").ours.mean == 0.2
    assert of(done, "epsilon_drop_below", panel="b").ours is None


def test_rounds_to_fedavgs_best_in_whole_percent(tmp_path):
    setting = ("0.1", "1", "10")
    curves = {
        "fedavg": [
            {"accuracy_global_best": 0.805, rows.CURVE: "10:0.5 20:0.801 30:0.805"},
            {"accuracy_global_best": 0.75, rows.CURVE: "10:0.75 20:0.6"},
        ],
        "fedavg+fedpd": [
            {"accuracy_global_best": 0.9, rows.CURVE: "10:0.8 20:0.9"},
            {"accuracy_global_best": 0.9, rows.CURVE: "10:0.7 20:0.9"},
        ],
        "scaffold": [
            {"accuracy_global_best": 0.9, rows.CURVE: "10:0.9"},
            {"accuracy_global_best": 0.7, rows.CURVE: "10:0.7 20:0.7"},
        ],
    }
    done = result("fedpd/table5", tmp_path, {(m, *setting): c for m, c in curves.items()})
    where = {"alpha": "0.1", "local_epochs": "1", "clients": "10"}
    assert of(done, "target_accuracy", **where).ours.mean == pytest.approx((0.80 + 0.75) / 2)
    assert of(done, "rounds_to_target", method="fedavg", **where).ours.mean == 15  # rounds 20 and 10
    assert of(done, "rounds_to_target", method="fedavg+fedpd", **where).ours.mean == 15
    faster = of(done, "speedup", method="fedavg+fedpd", **where).ours
    # 20 rounds over 10 and 10 over 20: off a ratio of one by (20 - 10) / 15 and as much less
    assert faster.mean == 1 and faster.std == pytest.approx(math.sqrt(2) * 10 / 15)
    assert of(done, "rounds_to_target", method="scaffold", **where).ours.mean == math.inf  # a seed did not
    assert of(done, "speedup", method="scaffold", **where).ours.mean == 0
    assert of(done, "accuracy_gain", method="fedavg+fedpd", **where).ours.mean == pytest.approx(0.9 - 0.7775)
    gained = of(done, "accuracy_gain", method="fedavg+fedpd", **where).ours
    assert gained.std == pytest.approx((0.15 - 0.095) / math.sqrt(2))  # of the seeds' own differences
    header, lines = grid(done, "rounds_to_target", "rounds_to_target")
    row = next(line for line in lines if line[0] == "scaffold")
    assert header[1] == "alpha 0.1, local_epochs 1, clients 10" and row[1].startswith("never (")


def test_what_clients_send(tmp_path):
    sizes = {"logreg": 7850, "cnn": 26010}
    numbers = {}
    for model, size in sizes.items():
        bytes_ = {"pfa+": 400 * 4 * size, "others": 4000 * 4 * size}
        for method, sent in bytes_.items():
            numbers[model, method] = {"uplink_bytes": sent, "parameters": size}
        numbers[model, "pfa+"]["uplink_bytes_projected"] = 8 if model == "logreg" else 32
    done = result("pfa/fig7", tmp_path, numbers)
    assert of(done, "uplink_mb", method="pfa+", model="logreg").ours.mean == pytest.approx(11.98, abs=0.01)
    assert of(done, "uplink_mb", method="others", model="cnn").ours.mean == pytest.approx(396.9, abs=0.1)
    assert of(done, "uplink_reduction").ours.mean == pytest.approx(0.9)
    assert of(done, "uplink_bits_per_client_round").ours.mean == 64
    private = [a for a in done.answers() if a.printed.metric == "uplink_reduction_private"]
    assert len(private) == 5 and all(a.ours.mean == pytest.approx(1 - 32 / 104040) for a in private)


def test_claims_hold_tie_and_fail(tmp_path):
    better = {("privatefl", e): 0.8 for e in "2468"} | {("fedavg", e): 0.7 for e in "2468"}

    def claim(numbers, seeds=1):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        held = result("privatefl/table4", folder, numbers, seeds).held()
        return next(h for h in held if h.claim.axis == "method" and h.view == "local")

    first = claim(better)
    assert (first.holds, first.ties, first.fails, first.verdict) == (4, 0, 0, "holds")
    some = claim(better | {("privatefl", "2"): 0.6})
    assert (some.holds, some.fails, some.verdict) == (3, 1, "mixed")
    assert claim(better | {("privatefl", e): 0.704 for e in "2468"}).verdict == "ties"
    assert claim({("privatefl", "2"): 0.5, ("fedavg", "2"): 0.6}).verdict == "fails"
    assert claim({("privatefl", "2"): 0.5}).verdict == "not run"
    noisy = claim({("privatefl", "2"): [0.9, 0.5], ("fedavg", "2"): [0.5, 0.7]})
    assert noisy.ties == 1 and noisy.seeds == 2  # 0.4 more with one seed, 0.2 less with the other


def test_a_claim_about_another_number(tmp_path):
    numbers = {("fedavg",): {"emd": 0.4}, ("ax+b",): {"emd": 0.2}, ("ax^2+b",): {"emd": 0.3}}
    held = {h.claim.text: h for h in result("privatefl/table1", tmp_path, numbers).held() if h.view == "emd"}
    assert held["EMD with ax+b below that without"].verdict == "holds"
    assert held["EMD with ax^2+b is the smallest"].verdict == "fails"


# -- rows


def test_rows_come_back_sorted_and_once(tmp_path):
    own = recipe.load("privatefl/table4")
    first, *_, last = own.cells("full")
    line = rows.of_summary({"accuracy_local_best": 0.25, rows.CURVE: "1:0.1 3:0.25", "rounds": 3}, ["x=1"])
    rows.add(own, last, 0, "full", "b", line, tmp_path)
    rows.add(own, first, 1, "full", "c", line, tmp_path)
    rows.add(own, first, 0, "cpu", "a", line, tmp_path)
    rows.add(own, first, 0, "cpu", "a", line, tmp_path)
    found = rows.read(own, tmp_path)
    assert [row.identity for row in found] == ["a", "c", "b"]
    assert found[0].cell == first.facts and found[0].scale == "cpu" and found[0].about["overrides"] == "x=1"
    assert found[0].measured["accuracy_local_best"] == 0.25 and found[0].measured["emd"] is None
    assert found[0].curve == {1: 0.1, 3: 0.25}
    assert rows.known(tmp_path).keys() == {"a", "b", "c"}


def test_scales_are_not_averaged(tmp_path):
    own = recipe.load("privatefl/table4")
    first, second, *_ = own.cells("full")
    for cell, scale, key, value in (
        (first, "cpu", "a", 0.2),
        (first, "full", "b", 0.8),
        (second, "cpu", "c", 0.4),
    ):
        rows.add(own, cell, 0, scale, key, rows.of_summary({"accuracy_local_best": value}, []), tmp_path)
    done = Comparison(own, tmp_path)
    means = [done.value(tuple(cell.facts.values()), "accuracy_local_best") for cell in (first, second)]
    assert [(m.mean, m.seeds) for m in means] == [(0.8, 1), (0.4, 1)]


def test_rows_without_a_curve_are_still_read(tmp_path):
    own = recipe.load("privatefl/table4")
    line = rows.of_summary({"accuracy_local_best": 0.25}, [])
    rows.add(own, own.cells()[0], 0, "full", "a", line, tmp_path)
    path = rows.path_of(own, tmp_path)
    with open(path, newline="") as file:
        table = list(csv.DictReader(file))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [c for c in table[0] if c != rows.CURVE], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    assert rows.read(own, tmp_path)[0].curve == {}


def test_tables_in_three_formats(tmp_path):
    numbers = {("privatefl", "2"): [0.80, 0.84], ("fedavg", "2"): [0.69, 0.70], ("fedavg", "8"): 0.9}
    done = result("privatefl/table4", tmp_path / "rows", numbers)
    header, lines = grid(done, "accuracy", "accuracy_local_best")
    assert header == ["method", "epsilon 2", "epsilon 4", "epsilon 6", "epsilon 8"]
    assert lines[0] == ["fedavg", ".695±.007 (.691)", "- (.725)", "- (.776)", ".900 (.785)"]
    assert lines[1][:2] == ["privatefl", ".820±.028 (.776)"]
    paths = {p.suffix: p.read_text() for p in write(done, tmp_path / "tables")}
    found = list(csv.DictReader(paths[".csv"].splitlines()))
    cell = next(r for r in found if (r["method"], r["epsilon"]) == ("privatefl", "2"))
    assert (cell["ours"], cell["paper"], cell["verdict"], cell["seeds"]) == ("0.82", "0.776", "unclear", "2")
    assert "| fedavg | .695±.007 (.691) |" in paths[".md"] and paths[".md"] == as_markdown(done)
    assert r"fedavg & .695$\pm$.007 (.691)" in paths[".tex"] and r"\toprule" in paths[".tex"]
    texts = "\n".join(remarks(done))
    assert "11 printed numbers: 1 within, 1 better, 1 unclear, 8 not run" in texts
    assert (
        "claim     PrivateFL above FedAvg: holds in the local view (1 hold, 0 tie, 0 fail, 2 seeds)" in texts
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, ".500"), (-0.01, "-.010"), (12.34, "12.34"), (3.456, "3.46"), (math.inf, "never")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


# -- the command


def tiny(**more) -> Recipe:
    content = {
        "title": "two cells",
        "base": "model.sizes=[8] clients=4 rounds=2 batch_size=64",
        "axes": {"dp": {"ldp": "dp=ldp", "none": "dp=none"}},
        "table": {"rows": ["dp"], "columns": []},
        "claims": [{"text": "no noise is better", "axis": "dp", "values": ["none", "ldp"]}],
        "scales": {"cpu": {"set": "rounds=1", "cut": "one round"}},
    }
    return Recipe("tiny/table1", content | more)


@pytest.fixture
def reproduce(fedpriv, monkeypatch):
    """Call the command with one recipe, that of the test."""

    def call(*arguments: str, own: Recipe | None = None, to: str = "reproduce"):
        chosen = own or tiny()
        monkeypatch.setattr(recipe, "names", lambda: (chosen.name,))
        monkeypatch.setattr(recipe, "load", lambda name: chosen)
        return fedpriv(to, *arguments)

    return call


def test_runs_are_made_once_and_shown(reproduce, tmp_path, monkeypatch):
    dry = reproduce("tiny/table1", "--dry-run", "--seeds", "2")
    assert dry.code == 0 and dry.out.count("to do  fedpriv run ") == 4 and "seed=1" in dry.out
    assert not (tmp_path / "outputs" / "runs").exists()
    first = reproduce("tiny/table1", "threads=1")
    assert first.code == 0 and "2 runs, 0 done, 2 to do" in first.out and "2 of 2 runs done" in first.out
    path = tmp_path / "outputs" / "reproduced" / "tiny-table1.csv"
    with open(path, newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["dp"] for row in table] == ["ldp", "none"] and table[0]["rounds"] == "2"
    assert [pair.partition(":")[0] for pair in table[0][rows.CURVE].split()] == ["1", "2"]
    monkeypatch.setattr(command, "_launch", None)  # would fail if called
    again = reproduce("tiny/table1")
    assert again.code == 0 and "2 runs, 2 done, 0 to do" in again.out
    for folder in (tmp_path / "outputs" / "runs").iterdir():  # the rows alone make a run done
        folder.rename(folder.with_name(f"moved-{folder.name}-"))
    assert "2 done, 0 to do" in reproduce("tiny/table1").out
    shown = reproduce("tiny/table1", to="table")
    assert shown.code == 0 and "no noise is better" in shown.out and "two cells" in shown.out
    assert (tmp_path / "outputs" / "reproduced" / "tables" / "tiny-table1.tex").exists()


def test_a_dry_run_writes_nothing(reproduce, fedpriv, tmp_path):
    """A finished run that has no row yet: the plan counts it as done, and leaves the rows alone."""
    assert fedpriv("run", "model.sizes=[8]", "clients=4", "rounds=2", "batch_size=64", "dp=none").code == 0
    before = sorted(path for path in tmp_path.rglob("*"))
    dry = reproduce("tiny/table1", "--dry-run")
    assert dry.code == 0 and "2 runs, 1 done, 1 to do" in dry.out
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_only_some_cells(reproduce):
    dry = reproduce("tiny/table1", "--dry-run", "--seeds=2", "--only", "dp=none")
    assert dry.code == 0 and "2 runs, 0 done, 2 to do" in dry.out and "dp_variant=ldp" not in dry.out
    assert "4 runs" in reproduce("tiny/table1", "--dry-run", "--seeds=2", "--only=dp=none,ldp").out
    smoke = reproduce("tiny/table1", "--dry-run", "--scale=smoke", "--only", "dp=none")
    assert "1 runs" in smoke.out and "dp_variant=none" in smoke.out  # the first of those


def test_another_recipe_takes_over_a_run(reproduce, tmp_path):
    assert reproduce("tiny/table1", "threads=1", "--scale=cpu").code == 0
    content = {
        "title": "the same runs under other names",
        "base": "model.sizes=[8] clients=4 rounds=1 batch_size=64",
        "axes": {"privacy": {"with": "", "no": "dp=none"}},
        "table": {"rows": ["privacy"], "columns": []},
    }
    other = Recipe("tiny/fig1", content)
    done = reproduce("tiny/fig1", own=other)
    assert done.code == 0 and "2 runs, 2 done, 0 to do" in done.out
    with open(tmp_path / "outputs" / "reproduced" / "tiny-fig1.csv", newline="") as file:
        assert [row["privacy"] for row in csv.DictReader(file)] == ["with", "no"]


def test_a_failed_cell_is_tried_again_and_listed(reproduce, tmp_path):
    own = tiny(axes={"dp": {"ldp": "dp=ldp", "none": "dp=none clients=3000"}})
    done = reproduce("tiny/table1", "threads=1", own=own)
    assert done.code == 1 and "1 of 2 runs done" in done.out
    (line,) = [line for line in done.out.splitlines() if line.startswith("failed twice: ")]
    assert "dp=none seed=0" in line and "3000" in line
    assert len(rows.read(own, tmp_path / "outputs" / "reproduced")) == 1


def test_a_cell_that_fails_once_is_done_in_the_end(reproduce, monkeypatch):
    from fedpriv.session import execution

    execute, calls = execution.execute, []

    def stumble(cfg, *arguments):
        calls.append(cfg.dp_variant._target_)
        if len(calls) == 1:
            raise RuntimeError("out of luck")
        return execute(cfg, *arguments)

    monkeypatch.setattr(execution, "execute", stumble)
    done = reproduce("tiny/table1", "threads=1")
    assert done.code == 0 and "2 of 2 runs done" in done.out and "failed" not in done.out
    assert len(calls) == 3 and calls[2] == calls[0]


def test_a_scale_may_have_no_cells(reproduce):
    own = tiny(scales={"cpu": {"only": {"dp": []}, "cut": "nothing"}})
    done = reproduce("tiny/table1", "--scale", "cpu", own=own)
    assert done.code == 0 and "0 runs, 0 done, 0 to do" in done.out and "tiny/table1: nothing" in done.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "usage"),
        (("--scale", "cpu"), "give one PAPER/ARTIFACT"),
        (("all", "pfa"), "give one PAPER/ARTIFACT"),
        (("pfa/fig99",), "no such recipe or folder; did you mean pfa/fig"),
        (("outputs/mine",), "outputs/mine: no such recipe or folder; `fedpriv reproduce --help` lists them"),
        (("pfa/fig3", "--scale", "big"), "choose one of smoke, cpu, full"),
        (("pfa/fig3", "--seeds", "0"), "whole number of at least 1"),
        (("pfa/fig3", "--jobs", "x"), "whole number of at least 1"),
        (("pfa/fig3", "--jobs"), "needs a value"),
        (("pfa/fig3", "--only", "clients=31"), "no such value; choose of 30, 50"),
        (("pfa/fig3", "--only", "dataset"), "no such axis; choose of "),
        (("pfa/fig3", "--fast"), "no such option"),
        (("pfa/fig3", "lr=0.1"), "would make other runs"),
        (("pfa/fig3", "--only", "model=logreg", "clients=30"), "`--only clients=30` for some of its cells"),
    ],
)
def test_mistakes_are_one_line(fedpriv, arguments, part):
    done = fedpriv("reproduce", *arguments)
    assert done.code == 2
    if arguments:
        (line,) = done.err.splitlines()
        assert line.startswith("error: ") and part in line
    else:
        assert part in done.out


def test_a_table_without_runs_is_one_line(fedpriv):
    done = fedpriv("table", "pfa/fig3")
    assert done.code == 2 and "no finished run" in done.err and len(done.err.splitlines()) == 1
    assert fedpriv("table").code == 2


def test_collect_leaves_what_is_not_done(tmp_path):
    own = tiny()
    jobs = plan.jobs_of([own], "full", 2)
    assert [(str(job.cell), job.seed) for job in jobs[:2]] == [("dp=ldp", 0), ("dp=none", 0)]
    rows.add(own, jobs[0].cell, 0, "full", jobs[0].identity, rows.of_summary({}, []), tmp_path)
    assert plan.collect(jobs, tmp_path / "runs", tmp_path) == jobs[1:]
    assert plan.distinct([*jobs, jobs[0]]) == jobs


def test_two_cells_that_are_one_run_both_have_it(tmp_path):
    """Without privacy a budget changes nothing; the table has the number in both places."""
    own = recipe.Recipe(
        "paper/table1",
        {
            "title": "t",
            "base": "clients=2",
            "axes": {"epsilon": {"1": "dp=none", "2": "dp=none"}, "method": {"a": "", "b": "rounds=2"}},
            "table": {"rows": ["method"], "columns": ["epsilon"]},
        },
    )
    jobs = plan.jobs_of([own], "full", 1)
    assert len(jobs) == 4 and len(plan.distinct(jobs)) == 2
    for job in plan.distinct(jobs):
        rows.add(own, job.cell, 0, "full", job.identity, rows.of_summary({}, []), tmp_path)
    assert plan.collect(jobs, tmp_path / "runs", tmp_path) == []
    assert len(rows.read(own, tmp_path)) == 4
    assert plan.collect(jobs, tmp_path / "runs", tmp_path) == [] and len(rows.read(own, tmp_path)) == 4


# -- damaged results


def damaged(tmp_path, change) -> tuple[Recipe, list[rows.Row]]:
    """Two rows of a recipe, its file changed, and what is read then."""
    own = recipe.load("privatefl/table1")
    for seed in (0, 1):
        line = rows.of_summary({"rounds": 3, "accuracy_local_best": 0.5}, [])
        rows.add(own, next(iter(own.cells("full"))), seed, "full", f"0000000{seed}", line, tmp_path)
    path = rows.path_of(own, tmp_path)
    lines = path.read_text().splitlines()
    path.write_bytes(change(lines))
    return own, rows.read(own, tmp_path)


@pytest.mark.parametrize(
    ("change", "left", "word"),
    [
        (lambda lines: "\n".join([*lines, lines[1]]).encode(), 2, "row 4"),
        (lambda lines: "\n".join([*lines[:2], lines[2].replace("0.5", "7")]).encode(), 1, "row 3"),
        (lambda lines: "\n".join([*lines[:2], lines[2].replace("0.5", "nan")]).encode(), 1, "row 3"),
        (lambda lines: "\n".join([*lines[:2], lines[2][:12]]).encode(), 1, "row 3"),
        (lambda lines: "\n".join([*lines[:2], "x" + lines[2].replace(",1,", ",one,")]).encode(), 1, "row 3"),
        (lambda lines: b"\xff\xfe\x00\x01", 0, ".csv is left out"),
    ],
    ids=["doubled", "accuracy 7", "nan", "cut", "no seed", "binary"],
)
def test_a_damaged_row_is_named_and_the_others_count(tmp_path, capfd, change, left, word):
    rows._told.cache_clear()
    _, found = damaged(tmp_path, change)
    err = capfd.readouterr().err
    assert len(found) == left and err.count("\n") == 1 and word in err, err


def test_a_foreign_file_among_the_results_is_left_out(tmp_path, capfd):
    rows._told.cache_clear()
    damaged(tmp_path, lambda lines: "\n".join(lines).encode())
    (tmp_path / "other.csv").write_bytes(b"\x80\x81")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    assert set(rows.known(tmp_path)) == {"00000000", "00000001"}
    assert "other.csv is left out" in capfd.readouterr().err


def test_a_file_that_cannot_be_read_is_not_written_over(tmp_path):
    own, _ = damaged(tmp_path, lambda lines: b"\xff" + "\n".join(lines).encode())
    before = rows.path_of(own, tmp_path).read_bytes()
    with pytest.raises(UserError, match="mend or remove it"):
        rows.add(own, next(iter(own.cells("full"))), 2, "full", "00000002", {}, tmp_path)
    assert rows.path_of(own, tmp_path).read_bytes() == before


def test_no_committed_row_is_left_out(capfd):
    only_committed_results()
    rows._told.cache_clear()
    read = sum(len(rows.read(recipe.load(name))) for name in recipe.names())
    lines = sum(len(p.read_text().splitlines()) - 1 for p in rows.FOLDER.glob("*.csv"))
    assert read == lines and not capfd.readouterr().err


def test_a_damaged_summary_is_named_and_its_run_is_left_to_do(tmp_path, capfd):
    rows._told.cache_clear()
    folder = tmp_path / "digits-00000000"
    folder.mkdir()
    (folder / "summary.json").write_text("{")
    assert rows.sound_summary(folder) is None and str(folder) in capfd.readouterr().err


def test_a_list_of_budgets_can_be_asked_for(fedpriv):
    """Of the values 1, 10 and 1,1,10 the last is meant, not the first two; 1,10 are two values."""
    asked = {
        budgets: fedpriv("reproduce", "pldpfl/fig2", "--dry-run", "--only", f"budgets={budgets}").out
        for budgets in ("1,1,10", "1,10")
    }
    assert asked["1,1,10"].count(" fedpriv run ") == asked["1,1,10"].count("budget.epsilons=[1,1,10]") > 0
    assert "budget.epsilons" not in asked["1,10"] and "epsilon=10 " in asked["1,10"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("pldpfl", "--only", "budgets=1", "--only", "method=selection", "--only", "range=1"),
            "no such axis",
        ),
        (
            ("all", "--only", "budgets=1,1,10", "--only", "participation_rounds=1"),
            "no recipe has all of these",
        ),
        (("pldpfl/fig2", "--seeds", "²"), "must be a whole number"),
        (("pldpfl/fig2", "--only", "budgets"), "--only budgets: no such value; choose of none"),
        (("pldpfl/fig2", "--only", "budgets=1,1,1"), "--only budgets=1,1,1: no such value"),
        (("pldpfl/fig2", "seed=3"), "--seeds N"),
        (("pldpfl/fig2", "threads=0"), "threads=0"),
        (("pldpfl/fig2", "logger=wandbb"), "wandbb"),
        (("pldpfl/fig2", "device=cuda:99"), "cuda:99"),
    ],
)
def test_what_no_recipe_has_is_one_line(fedpriv, words, told):
    for how in (["--dry-run"], []):
        done = fedpriv("reproduce", *words, *how)
        assert done.code == 2 and told in done.err and done.err.count("\n") == 1, done.err
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text.replace("identity,", "id,", 1), "has no column identity"),
        (lambda text: text.replace("dp,", "", 1), "has no column dp"),
        (lambda text: text + "half a row\n", "row 3 has not one value a column"),
    ],
)
def test_rows_that_cannot_be_read_are_not_written_over(reproduce, tmp_path, damage, told):
    reproduce("tiny/table1", "--only", "dp=none")
    path = tmp_path / "outputs" / "reproduced" / "tiny-table1.csv"
    damaged = damage(path.read_text())
    path.write_text(damaged)
    done = reproduce("tiny/table1")
    assert done.code == 2 and told in done.err and "Traceback" not in done.err, done.err
    assert path.read_text() == damaged and "ldp" not in damaged
    assert not list((tmp_path / "outputs" / "runs").glob("*-ldp-*"))


def test_a_folder_that_takes_no_rows_is_said_before_anything_runs(reproduce, tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "reproduced").write_text("in the way")
    done = reproduce("tiny/table1")
    assert done.code == 2 and "outputs/reproduced" in done.err and done.err.count("\n") == 1, done.err
    assert not (tmp_path / "outputs" / "runs").exists()
