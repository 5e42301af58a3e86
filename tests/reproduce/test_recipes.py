"""Recipes: every printed number is answered or left out for a reason, every cell can be composed and run."""

from functools import cache

import pytest
from hydra.core.global_hydra import GlobalHydra

from fedpriv import compose
from fedpriv.building import build
from fedpriv.config.checks import check
from fedpriv.config.composing import expand
from fedpriv.config.identity import of_config
from fedpriv.config.schema import GROUPS
from fedpriv.encoders.settings import ARCHS
from fedpriv.errors import UserError
from fedpriv.parts.making import make
from fedpriv.reproduce import plan, recipe, reference, rows
from fedpriv.reproduce.compare import Comparison
from fedpriv.reproduce.recipe import SCALES, Recipe
from fedpriv.reproduce.rules import RULES
from tests.helpers import files

NAMES = recipe.names()
PUBLISHED = {  # tables, figures
    "privatefl": (11, 10),
    "pldpfl": (1, 7),
    "fedpd": (6, 12),
    "pfa": (6, 13),
    "ldpfl": (1, 5),
}


def complete(name: str, tmp_path) -> Comparison:
    """A comparison in which every cell has been run, with numbers of no meaning."""
    done = Comparison(recipe.load(name), tmp_path)
    measured = dict.fromkeys(rows.MEASURED, 0.5) | {"uplink_bytes": 4e4, "parameters": 100.0}
    for cell in done.recipe.cells("full"):
        key = tuple(cell.facts.values())
        done.cells[key] = [rows.Row("", 0, "full", cell.facts, measured, {1: 0.1, 2: 0.5}, {})]
    return done


def test_every_printed_number_is_answered_or_left_out(tmp_path):
    answered, reasons = set(), {}
    for name in NAMES:
        done = complete(name, tmp_path)
        for printed in done.printed:
            if why := done.recipe.reason(printed):
                reasons[printed.line] = why
                continue
            assert printed.metric in done.recipe.values, (name, printed)
            assert done.ours(printed) is not None, (name, printed)
            answered.add(printed.line)
    numbers = reference.printed()
    for printed in numbers:
        elsewhere = [entry.reason for entry in recipe.left_out() if entry.about(printed)]
        assert printed.line in answered or printed.line in reasons or elsewhere, printed
    assert len(numbers) == 963 and len(answered) == 955
    for line, why in reasons.items():  # "answered by privatefl/table5" has to be true
        assert not why.startswith("answered by") or line in answered


def test_everything_published_has_a_recipe_or_a_reason():
    known = {*NAMES, *(f"{entry.paper}/{entry.artifact}" for entry in recipe.left_out())}
    for paper, (tables, figures) in PUBLISHED.items():
        wanted = {f"{paper}/table{i}" for i in range(1, tables + 1)}
        wanted |= {f"{paper}/fig{i}" for i in range(1, figures + 1)}
        assert wanted <= known, sorted(wanted - known)
    assert not {f"{e.paper}/{e.artifact}" for e in recipe.left_out()} & set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_makes_sense(name):
    own = recipe.load(name)
    for metric, number in own.values.items():
        assert number in rows.MEASURED or number in RULES, metric
    for claim in own.claims:
        assert claim.metric in own.values
    for entry in (own.figure or {}).items():
        for value in entry[1] if isinstance(entry[1], list) else [entry[1]]:
            assert value in own.axes or value in own.values or value in ("round", *RULES), entry
    assert own.cells("full") and len(own.cells("smoke")) == 1
    full = {cell.values for cell in own.cells("full")}
    assert {cell.values for cell in own.cells("cpu")} <= full
    for scale, content in own.scales.items():
        changes = content.keys() & {"set", "only", "when", "omit"}
        assert scale != "cpu" or bool(changes) <= ("cut" in content), "a cut is told in words"


def parts(overrides: tuple[str, ...]) -> set[tuple[str, str]]:
    """What can be wrong with a cell: an override, and a value of an option together with that option."""
    chosen = dict(expand(o).split("=", 1) for o in overrides)
    return {(chosen.get(expand(o).partition(".")[0], ""), expand(o)) for o in overrides}


@cache
def cells_that_differ() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Of all cells of all scales as many as have something in them that no other has had."""
    seen: set[tuple[str, str]] = set()
    found = []
    for name in NAMES:
        for cell in (c for scale in SCALES for c in recipe.load(name).cells(scale)):
            if new := parts(cell.overrides) - seen:
                seen |= new
                found.append((name, cell.overrides))
    return tuple(found)


def test_cells_compose_and_pass_the_checks():
    for name, overrides in cells_that_differ():
        config = plan.composed(overrides)
        try:
            check(config)
            for group in ("dp_variant", "partition", "budget", "aggregator", "algorithm", "upload", "stage"):
                make(config, group)
        except UserError as problem:
            pytest.fail(f"{name}: {overrides}: {problem}")


@pytest.mark.parametrize("name", ["pfa/fig3", "privatefl/table7", "pldpfl/fig2", "fedpd/table5"])
def test_composing_is_hydras(name):
    GlobalHydra.instance().clear()
    cell = recipe.load(name).cells("cpu")[-1]
    ours = plan.composed(cell.overrides)
    hydras = compose(*cell.overrides)
    assert ours == hydras and of_config(ours) == of_config(hydras)


def test_composing_refuses_in_one_line():
    with pytest.raises(UserError, match=r"transform\.alpha=pixel"):
        plan.composed(["transform=none", "transform.alpha=pixel"])


@pytest.mark.parametrize(
    ("name", "cell", "metric", "value"),
    [
        ("privatefl/table1", {"method": "ax+b"}, "emd", 0.220),
        ("privatefl/table2", {"alpha_dim": "channel", "beta_dim": "pixel"}, "accuracy", 0.892),
        ("privatefl/table5", {"method": "dp-scaffold+privatefl", "epsilon": "2"}, "accuracy", 0.531),
        ("privatefl/table5", {"method": "ppsgd", "epsilon": "8"}, "accuracy", 0.898),
        (
            "privatefl/table6",
            {
                "dataset": "cifar100",
                "encoder": "clip",
                "table_block": "ldp",
                "method": "dn",
                "epsilon": "inf",
            },
            "accuracy",
            0.649,
        ),
        (
            "privatefl/table9",
            {"dataset": "mnist", "dp": "ldp", "method": "fedavg", "classes_per_client": "10"},
            "accuracy",
            0.855,
        ),
        (
            "privatefl/table11",
            {"dp": "ldp", "method": "privatefl", "participation_rounds": "2", "epsilon": "8"},
            "accuracy",
            0.728,
        ),
        ("pldpfl/fig3", {"budgets": "none", "method": "arithmetic"}, "accuracy", 0.731),
        (
            "fedpd/table1",
            {"method": "scaffold+fedpd", "alpha": "0.05", "local_epochs": "1", "clients": "10"},
            "rounds_to_target",
            37,
        ),
        (
            "fedpd/table5",
            {"method": "fedavg", "alpha": "0.1", "local_epochs": "1", "clients": "100"},
            "target_accuracy",
            0.9,
        ),
        ("fedpd/table3", {"method": "fednova", "partition": "subset"}, "accuracy", 0.3852),
        ("fedpd/table4", {"method": "fedprox+fedpd", "noise": "laplace"}, "accuracy", 0.9136),
        ("pfa/fig6", {"projection": "public", "k": "1"}, "accuracy", 0.8),
        ("pfa/fig7", {"model": "cnn", "method": "others"}, "uplink_mb", 377),
        (
            "ldpfl/table1",
            {"dataset": "cifar10", "method": "ldpfl-adaptive", "epsilon": "10"},
            "accuracy",
            0.6037,
        ),
        ("ldpfl/fig5", {"panel": "b", "radius": "own", "epsilon": "4"}, "accuracy", 0.8626),
    ],
)
def test_a_cell_finds_its_printed_number(name, cell, metric, value, tmp_path):
    done = complete(name, tmp_path)
    cell = dict(zip(["reading"], done.recipe.readings, strict=False)) | cell
    key = tuple(cell[axis] for axis in done.recipe.axes)
    assert key in [tuple(c.facts.values()) for c in done.recipe.cells("full")]
    ours, printed = done.of_cell(key, metric, done.recipe.values[metric])
    assert ours is not None and printed is not None and printed.value == value


def test_a_random_projection_has_no_printed_number(tmp_path):
    done = complete("pfa/fig6", tmp_path)
    assert done.of_cell(("code", "random", "1"), "accuracy", "accuracy_global_mean_last10")[1] is None


BASE = {"title": "t", "axes": {"a": {"x": "lr=1", "y": "dp=none"}}, "table": {"rows": ["a"], "columns": []}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": 1},
        {"table": {"rows": [], "columns": []}},
        {"when": [[{"b": "x"}, "lr=2"]]},
        {"omit": [{"a": "z"}]},
        {"claims": [{"text": "", "axis": "a", "values": ["x", "z"]}]},
        {"scales": {"cpu": {"only": {"a": ["z"]}}}},
        {"scales": {"cpu": {"omit": [{"a": "z"}]}}},
        {"figure": {"colour": "a"}},
    ],
)
def test_a_recipe_with_a_slip_is_refused(wrong):
    with pytest.raises(ValueError, match="conf/paper/tiny/table1"):
        Recipe("tiny/table1", BASE | wrong)


def test_what_a_cell_overrides():
    own = Recipe(
        "tiny/table1",
        BASE
        | {
            "base": "dp=cdp dp_variant.bound=paper rounds=3 lr=5",
            "when": [[{"a": ["y"]}, "rounds=4"]],
            "scales": {"cpu": {"set": "rounds=2", "when": [[{"a": "x"}, "lr=7"]]}},
        },
    )
    x, y = (cell.overrides for cell in own.cells("full"))
    assert x == ("dp=cdp", "dp_variant.bound=paper", "rounds=3", "lr=1")
    assert y == ("lr=5", "dp=none", "rounds=4")  # what was set of cdp went with it
    x, y = (cell.overrides for cell in own.cells("cpu"))
    assert set(x) == {"dp=cdp", "dp_variant.bound=paper", "rounds=2", "lr=7"}
    assert set(y) == {"lr=5", "dp=none", "rounds=2"}


def test_feature_files_are_those_that_the_command_writes():
    """But for CLIP's, which are older than it."""
    for cell in recipe.load("privatefl/table6").cells("full"):
        for word in cell.overrides:
            if word.startswith(("dataset.path=", "dataset.statistics=")) and "clip" not in word:
                encoder, _, arch = word.split("_", 1)[1].removesuffix(".npz").partition("-")
                assert arch in ARCHS[encoder], word


# -- the first cell of each recipe trains


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files.write(folder)
    return folder


def few(overrides: tuple[str, ...]) -> list[str]:
    """As few clients, samples and steps as the partition, the budgets and the schedule allow."""
    own = dict(o.split("=", 1) for o in overrides)
    many = own.get("budget.epsilons", "1,1,1,1").count(",") + 1
    more = ["local_steps=1", "batch_size=8", "sample_rate=1", f"clients={min(many, int(own['clients']))}"]
    if own.get("participations", "null") != "null":
        more[2:] = ["clients=10"]  # one in each of ten rounds
    more += ["partition.samples_per_client=20"] * ("partition.samples_per_client" in own)
    more += ["partition.min_samples=1"] * (own.get("partition") == "dirichlet")
    more += ["dataset.train_size=200", "dataset.test_size=50"] * (own["dataset"] == "covtype")
    more += ["dp_variant.bits=20"] * (own.get("dp") == "ddp")  # few clients need much noise
    more += ["stage.cache=false", "stage.batch_size=8"] * (own.get("stage") == "fedpd")
    return [*overrides, *more]


def _one_round(name: str):
    slow = "model=resnet18" in recipe.load(name).cells("smoke")[0].overrides
    return pytest.param(name, marks=[pytest.mark.long] * slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [_one_round(n) for n in NAMES])
def test_the_first_cell_trains_for_a_round(name, data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))
    (cell,) = recipe.load(name).cells("smoke")
    config = plan.composed([*few(cell.overrides), f"data_dir={data_dir}", "threads=1"])
    result = build(config).trainer.round()
    assert len(result.clients) == config.clients and result.evaluation is not None


def combinations() -> list[tuple[str, tuple[str, ...]]]:
    """A cell for each choice of options and of what is set of them, numbers and slow networks aside."""
    found: dict[frozenset[str], tuple[str, tuple[str, ...]]] = {}
    for name in NAMES:
        for cell in (c for scale in ("full", "cpu") for c in recipe.load(name).cells(scale)):
            own = dict(expand(o).split("=", 1) for o in cell.overrides)
            if own.get("model") in ("resnet18", "alexnet") or own["dataset"] == "purchase100":
                continue
            told = {k: v for k, v in own.items() if (k in GROUPS or "." in k) and k != "dataset"}
            shape = {k if v[-1].isdigit() or k == "dataset.path" else f"{k}={v}" for k, v in told.items()}
            found.setdefault(frozenset(shape), (name, cell.overrides))
    return list(found.values())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_every_combination_of_options_trains_for_a_round(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))
    for file in ("cifar100_clip_vitb32", "cifar10_checkpoint-resnet50", "cifar10_checkpoint-resnext29_8x4d"):
        files.features(data_dir / "features" / f"{file}.npz", 10)
    files.features(data_dir / "features" / "cifar100_checkpoint-resnext29_8x4d.npz", 100)
    failed = []
    for name, overrides in combinations():
        config = plan.composed([*few(overrides), f"data_dir={data_dir}", "threads=1"])
        if "rounds" in config.stage:
            config.stage.rounds, config.stage.latent = 1, 16
        try:
            build(config).trainer.round()
        except Exception as problem:
            failed.append(f"{name}: {overrides}: {problem}")
    assert not failed, "\n".join(failed)
