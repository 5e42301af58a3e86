"""Every option of every group through what its seam promises."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from fedpriv.config.names import register
from fedpriv.contracts.bench import SEAMS, bench, tried

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = [(group, file.stem) for group in SEAMS for file in sorted((CONF / group).glob("*.yaml"))]
# What an option's run needs, and options that make it quick.
RUN = {"fedbn": ("model.norm=batch",), "fedgn": ("model.norm=group",)}
OWN = {"fedpd": {"share": "raw"}, "ddp": {"bits": 20}}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_keeps_the_promises_of_its_seam(group, option):
    register()
    with initialize_config_module("fedpriv.conf", version_base="1.3"):
        cfg = compose("config", overrides=[f"{group}={option}"])
    node = OmegaConf.to_container(cfg[group], resolve=True) | OWN.get(option, {})
    held = bench(node.pop("_target_"), node, RUN.get(option, ()))
    assert held.group == group
    results = {check.name: tried(check) for check in held.checks()}
    assert not {name: why for name, (state, why) in results.items() if state == "FAILED"}
    assert any(state == "ok" for state, _ in results.values())
