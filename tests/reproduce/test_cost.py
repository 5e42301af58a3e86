"""What a reproduction costs: steps that are counted by hand, and operations of a network one can count."""

import pytest

from fedpriv.config import catalogue
from fedpriv.engine.fast import FastEngine
from fedpriv.reproduce import cost, plan
from tests.reproduce.test_reproduce import reproduce, tiny  # noqa: F401

SMALL = ("dataset=mnist", "model=linear", "clients=100", "rounds=3", "dp=none")


def test_samples_of_a_run_by_hand():
    """60,000 images in each of three rounds; 10,000 tested after each."""
    assert cost.samples_of(plan.composed(SMALL)) == (3 * 60_000, 3 * 10_000)


def test_samples_follow_rate_steps_and_personal_networks():
    fewer = plan.composed((*SMALL, "sample_rate=0.5", "local_steps=2", "batch_size=10", "evaluate_every=3"))
    assert cost.samples_of(fewer) == (3 * 50 * 20, 10_000)
    personal = plan.composed((*SMALL, "transform=linear", "evaluate_every=3"))
    assert cost.samples_of(personal) == (3 * 60_000, 100 * 10_000)


def test_operations_of_a_linear_layer():
    """784 x 10 multiplications and as many additions forward, and twice that backward."""
    step = cost.measured_step(plan.composed(SMALL))
    assert step.operations == 3 * 2 * 784 * 10 and step.seconds > 0 and step.judged > 0


def test_a_trial_trains_as_the_run_does():
    """4,700 samples of 3.19 million operations make 1.5e10: ten steps of 64 for seven clients; the whole of a
    run that is smaller."""
    assert cost._trial(plan.composed((*SMALL, "batch_size=64")), 3.19e6) == (7, 10, 64)
    few = ("dataset=digits", "clients=2", "local_steps=3", "batch_size=8", "dp=none")
    assert cost._trial(plan.composed(few), 1e3) == (2, 3, 8)


@pytest.mark.parametrize("model", ["cnn", "cnn_two_layer"])
def test_a_trial_is_compiled_where_the_run_is(model, monkeypatch):
    compiled = []
    chain = FastEngine._chain_for
    monkeypatch.setattr(
        FastEngine, "_chain_for", lambda *given: compiled.append(bool(made := chain(*given))) or made
    )
    monkeypatch.setattr(cost, "_best", lambda work: work() and 1.0)
    cost.measured_step(plan.composed(("dataset=mnist", f"model={model}", "clients=10", "dp=none")))
    assert compiled and all(compiled)


def test_private_steps_are_a_kind_of_their_own(monkeypatch):
    monkeypatch.setattr(cost, "measured_step", lambda config: cost.Step(1e-6, 1e-7, 5e6))
    steps = cost.Steps()
    for dp in ("none", "ldp", "cdp"):
        steps.cost(plan.composed((*SMALL[:-1], f"dp={dp}")))
    assert len(steps.measured) == 2  # what is done to whole clients is no part of a step


def test_a_kind_is_measured_once_and_costs_add_up(monkeypatch):
    calls = []
    monkeypatch.setattr(
        cost, "measured_step", lambda config: calls.append(config) or cost.Step(1e-6, 1e-7, 5e6)
    )
    configs = [plan.composed((*SMALL, f"seed={seed}")) for seed in (0, 1)]
    every = cost.total(configs, cost.Steps())
    assert len(calls) == 1 and every.runs == 2
    assert every.seconds == pytest.approx(2 * 0.183) and every.gpu_seconds == pytest.approx(2 * 0.19)


def test_every_data_set_has_a_shape():
    assert set(catalogue.options("dataset")) - {"files"} == set(cost.SAMPLES)


def test_a_plan_says_what_it_costs(reproduce):  # noqa: F811
    dry = reproduce("tiny/table1", "--dry-run")
    (line,) = [line for line in dry.out.splitlines() if line.startswith("cost: ")]
    assert line.startswith("cost: 2 different runs, about 0 s on a core of this machine") and "GPU" in line
