"""What the source of a part says is what the part says when it is imported."""

import inspect

import pytest

from fedpriv.config.catalogue import contents
from fedpriv.config.options import target_of
from fedpriv.config.schema import GROUPS
from fedpriv.config.signatures import asked, written
from fedpriv.device import kind_of_device, only_cpu

TARGETS = {content["_target_"]: group for group in GROUPS for content in contents(group).values()}


@pytest.mark.parametrize("path", sorted(TARGETS))
def test_the_source_says_what_the_imported_part_says(path):
    read, told = written(path), asked(target_of(TARGETS[path], {"_target_": path}), path)
    assert read is not None, "every part of the package is read without importing it"
    assert read.name == told.name
    for name, parameter in told.parameters.items():
        assert read.parameters[name].kind is parameter.kind
        assert read.parameters[name].default == parameter.default
        assert type(read.parameters[name].default) is type(parameter.default)
    assert list(read.parameters) == list(told.parameters)
    assert dict(read.hints) == {n: h for n, h in told.hints.items() if n in told.parameters}


@pytest.mark.parametrize(
    "path",
    [
        "trimmed.Trimmed",  # somebody's own
        "fedpriv.building.nn",  # imported there, not defined
        "fedpriv.config.limits.Within",  # a dataclass: its signature is made by a decorator
        "fedpriv.nowhere.Part",
        "fedpriv",
    ],
)
def test_what_the_source_does_not_say_plainly_is_not_guessed(path):
    assert written(path) is None


def test_a_required_option_has_no_default():
    read = written("fedpriv.budgets.listed.Listed")
    assert read.parameters["epsilons"].default is inspect.Parameter.empty


def test_the_kind_of_device_without_torch_is_torchs_own():
    import torch

    if only_cpu():
        assert not torch.cuda.is_available() and not torch.backends.mps.is_available()
    assert kind_of_device("auto") in ("cpu", "cuda", "mps")


def test_a_build_for_cuda_with_a_driver_is_asked(monkeypatch, tmp_path):
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr("fedpriv.device.find_spec", lambda name: spec)
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n")
    monkeypatch.setattr("fedpriv.device._lacks", lambda library: False)
    assert not only_cpu()
    monkeypatch.setattr("fedpriv.device._lacks", lambda library: True)
    monkeypatch.setattr("fedpriv.device.sys.platform", "linux")
    assert only_cpu()
    monkeypatch.setattr("fedpriv.device.sys.platform", "darwin")
    assert not only_cpu()
