"""Every option on a device: no mixing, the CPU's numbers, no waiting inside of local steps, bounded costs."""

from pathlib import Path

import pytest

from fedpriv.config.schema import GROUPS
from tests.device.matrix import ALL, CASES, DISCRETE, LONG, OURS, STEP, STEPS
from tests.device.running import run, same, words_of
from tests.device.watching import Watch

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(n, marks=pytest.mark.long) for n in LONG)])
def test_two_rounds_on_a_device(name, device, same_draws, tmp_path):
    """Mixing of devices raises by itself, on the simulated one too."""
    expected = run(name, tmp_path, Watch(), lambda t: t)
    with device() as here:
        ran, watch = run(name, tmp_path, here.watch, here.to_cpu), here.watch
    assert same(ran.theta, expected.theta, name in DISCRETE)
    if name not in DISCRETE:
        assert ran.loss == pytest.approx(expected.loss, rel=1e-4)
    assert not watch.waits
    assert watch.in_steps <= STEPS.get(name, STEP) * watch.steps
    assert [got for got, most in ran.moved if got > most] == []


def test_no_option_is_left_out():
    used = {group: set() for group in GROUPS}
    for name in ALL:
        words = words_of(name)
        words["dp_variant"] = words.pop("dp", "ldp")
        words["aggregator"] = words.pop("agg", "mean")
        words["upload"] = words.get("upload", "plain")
        if words["dp_variant"] == "ddp":
            words["aggregator"], words["upload"] = "sum", "secure_sum"
        if words["aggregator"] == "pfa_plus":
            words["upload"] = "projected"
        defaults = {
            "transform": "none",
            "algorithm": "fedavg",
            "budget": "constant",
            "stage": "none",
            "server": "sgd",
        }
        for group in set(GROUPS) - {"logger"}:
            option = words.get(group, defaults.get(group))
            used[group].add(OURS.get(group, {}).get(option, option))
    for group in set(GROUPS) - {"logger", "dataset"}:  # data are loaded on the host
        assert {path.stem for path in (CONF / group).glob("*.yaml")} <= used[group], group
