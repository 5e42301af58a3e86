"""Every option composes, every wrong value is refused in one line before training."""

import inspect
from importlib.resources import files
from importlib.util import find_spec
from typing import get_type_hints

import pytest
import yaml

from fedpriv.config import catalogue
from fedpriv.config.annotations import misfit
from fedpriv.config.checks import check
from fedpriv.config.composing import expand, plan
from fedpriv.config.options import defaults, options_of, target_of
from fedpriv.config.schema import GROUPS, Schema, described
from fedpriv.errors import UserError
from fedpriv.parts.making import make

OPTIONS = [(group, name) for group in GROUPS for name in catalogue.options(group)]


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes_and_passes_the_check(config, group, name):
    cfg = config(f"{group}={name}")
    check(cfg)
    if name == "mlflow" and find_spec("mlflow") is None:  # an extra that the tests do without
        with pytest.raises(UserError, match=r"pip install 'fedpriv\[mlflow\]'"):
            make(cfg, group)
        return
    assert make(cfg, group, shape=(3, 64, 64), classes=10, vocabulary=50) is not None


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_says_what_it_is_and_repeats_no_default(group, name):
    """The first line is its description. A value stands in the file or in the signature, not in both."""
    text = files("fedpriv.conf").joinpath(f"{group}/{name}.yaml").read_text()
    described = catalogue.options(group)[name]
    assert f"# {described}\n" in text and described.endswith(".")
    content = yaml.safe_load(text)
    content = content.get(group, content)
    options = options_of(group, content)
    written = set(content) - {"_target_"}
    assert written | set(catalogue.meanings(text)) <= set(options), "what the target does not have"
    own = {key: list(v) if isinstance(v, tuple) else v for key, v in defaults(options).items()}
    assert not {key for key in written if key in own and own[key] == content[key]}, "said twice"


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_a_composed_config_shows_every_value(config, group, name):
    node = config(f"{group}={name}")[group]
    options = options_of(group, {"_target_": node._target_})
    assert set(node) == {"_target_", *options}
    target = target_of(group, {"_target_": node._target_})
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    for key, default in defaults(options).items():
        assert misfit(default, hints[key]) is None, "a default that its own annotation refuses"


def test_names_users_type():
    keys = {key for key, _, _ in described()}
    promised = "clients rounds sample_rate epsilon delta seed device data_dir local_epochs local_steps"
    promised += " batch_size lr clip_norm accountant checkpoint.every"
    assert set(promised.split()) <= keys
    assert {"model", "dp_variant", "aggregator"} <= set(Schema.__annotations__)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("dp=ldp", "dp_variant=ldp"),
        ("agg=mean", "aggregator=mean"),
        ("dp.clip=step", "dp_variant.clip=step"),
        ("+agg.k=2", "+aggregator.k=2"),
        ("dp=none,ldp", "dp_variant=none,ldp"),
        ("delta=1e-5", "delta=1e-5"),
        ("dp_variant=ldp", "dp_variant=ldp"),
        ("-m", "-m"),
    ],
)
def test_short_names(given, meant):
    assert expand(given) == meant


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["clients=0"], ["clients=0", "at least 1"]),
        (["sample_rate=1.5"], ["sample_rate=1.5", "at most 1"]),
        (["epsilon=-1"], ["epsilon=-1", "at least 0.0001"]),
        (["delta=1"], ["delta=1", "less than 1"]),
        (["epsilon=nan"], ["epsilon=nan", "finite"]),
        (["clip_norm=inf"], ["clip_norm=inf", "finite"]),
        (["accountant=gdp"], ["accountant=gdp", "rdp, prv"]),
        (["device=tpu"], ["device=tpu", "auto, cpu, cuda, mps"]),
        (["checkpoint.every=-1"], ["checkpoint.every=-1", "at least 0"]),
        (["model.activation=gelu"], ["model.activation=gelu", "relu, tanh"]),
        (["model.sizes=[a]"], ["model.sizes=", "whole number"]),
        (["model.bias=3"], ["model.bias=3", "true or false"]),
        (["+model.depth=3"], ["model.depth=3", "sizes, activation, bias, norm"]),
        (["dp=cdp", "dp.bound=mean"], ["dp_variant.bound=mean", "fixed, adaptive, paper"]),
        (["budget.use=mine"], ["budget.use=mine", "own, minimum, maximum"]),
        (["aggregator._target_=nowhere.Rule"], ["aggregator._target_=nowhere.Rule", "cannot be imported"]),
        (["+colour=red"], ["colour=red", "no such key"]),
    ],
)
def test_wrong_values_name_key_value_and_what_is_allowed(config, overrides, words):
    with pytest.raises(UserError) as problem:
        check(config(*overrides))
    line = str(problem.value)
    assert "\n" not in line and all(word in line for word in words)


@pytest.mark.parametrize(
    ("overrides", "ending"),
    [
        (["epsilon=3"], "20 clients, epsilon 3"),
        (["budget.epsilon=5"], "20 clients, epsilon 5"),
        (["dp=none", "epsilon=3"], "20 clients"),
        (["budget=mixgauss1", "epsilon=3"], "20 clients"),
    ],
)
def test_a_run_is_called_by_the_epsilon_it_has(overrides, ending):
    assert plan([*overrides, "clients=20"]).title.endswith(ending)


def test_a_missing_value_says_what_the_part_is_told_of_the_data():
    own = plan(["transform._target_=fedpriv.transforms.elementwise.Affine"]).config
    with pytest.raises(UserError, match=r"transform\.alpha is missing: .*; of the data it is told shape$"):
        check(own)
