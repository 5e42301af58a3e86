"""What is asked of a device before a run begins, what it lacks, and how its room is used."""

import os

import pytest
import torch

from fedpriv import accelerator
from fedpriv.accelerator import LACKING, refuse_lacking
from fedpriv.building import _noise_identity, build
from fedpriv.config import identity
from fedpriv.device import choose_device
from fedpriv.engine import fast, room
from fedpriv.errors import UserError
from fedpriv.randomness.source import Source, normals_of
from tests.device.matrix import CASES
from tests.device.running import config, run, same
from tests.device.simulated import MPS_LACKS, WHERE, on_cpu, simulated
from tests.device.watching import Watch

ONLY_SIMULATED = pytest.mark.parametrize("device", ["simulated"], indirect=True)


def present(monkeypatch, kind):
    kinds = {"cuda": kind == "cuda", "mps": kind == "mps", "cpu": True}
    monkeypatch.setattr("fedpriv.device._present", lambda: kinds)


def test_a_gpu_is_asked_for_whole_floats_in_one_order(monkeypatch):
    """TF32 would keep ten bits of a product, and clipping with them."""
    flags = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    flags.append((torch.backends.cudnn, "benchmark"))
    before = [getattr(*flag) for flag in flags]
    for owner, name in flags:
        setattr(owner, name, True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    present(monkeypatch, "cuda")
    try:
        assert choose_device("auto").type == "cuda"
        assert not any(getattr(*flag) for flag in flags)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        for (owner, name), value in zip(flags, before, strict=True):
            setattr(owner, name, value)


def test_a_run_says_which_device_auto_is(fedpriv):
    options = ("model.sizes=[4]", "clients=2", "rounds=1", "dp=none", "threads=1", "local_steps=1")
    assert "device=auto: cpu\n" in fedpriv("run", *options).out
    assert "device=auto" not in fedpriv("run", *options, "seed=1", "device=cpu").out


def test_kinds_of_device_share_neither_folder_nor_noise(monkeypatch):
    cfg = config_of("ldp")
    data = type("Data", (), {"fingerprint": "same"})
    found = []
    for kind in identity.KINDS:
        present(monkeypatch, kind)
        found.append((identity.of_config(cfg), _noise_identity(cfg, data)))
    assert len({a for a, _ in found}) == len({b for _, b in found}) == 3


# -- what MPS lacks

REFUSED = {"float64": "float64", "loop in float64": "float64", "pfa": "eigh", "pfa as printed": "eigh"}
REFUSED |= {"pfa_plus": "eigh", "duchi shuffled": "float64", "duchi adaptive, models shuffled": "float64"}
REFUSED |= {"ddp": "float64", "ddp masked": "float64"}
QUICK = ("ldp", "fednova", "cdp adaptive, every step", "pfa random", "selection of draws")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_on_mps_is_refused_in_one_line(name, monkeypatch):
    present(monkeypatch, "mps")
    with pytest.raises(UserError) as problem:
        build(config_of(name), prepare=False)
    assert f"device=mps: has no {REFUSED[name]}" in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(n, marks=pytest.mark.long) for n in CASES if n not in REFUSED and n not in QUICK),
    ],
)
def test_what_is_not_refused_runs_without_what_mps_lacks(name, same_draws, monkeypatch, tmp_path):
    expected = run(name, tmp_path, Watch(), lambda t: t)
    monkeypatch.setitem(LACKING, WHERE.type, LACKING["mps"])
    monkeypatch.setattr("fedpriv.building.choose_device", lambda name: WHERE)
    with simulated(monkeypatch, Watch(), MPS_LACKS):
        ran = run(name, tmp_path, Watch(), on_cpu)
    assert same(ran.theta, expected.theta, discrete="draws" in name or "sign" in name)


def test_a_device_that_lacks_nothing_refuses_nothing():
    refuse_lacking("cuda", "anything", ("float64", "eigh"))


# -- room


def test_chunks_follow_what_is_free_and_the_size_of_numbers(monkeypatch):
    """A weight takes four copies and 32 bytes of drawing, an activation itself, in half of a mebibyte: that
    fits 10 and 7 times, of which the power of two below is taken."""
    monkeypatch.setattr(room, "free_bytes", lambda device: 1 << 20)
    assert 524_288 // (1000 * (4 * 4 + 32) + 500 * 4) == 10 and room.for_clients(WHERE, 1000, 500, 4) == 8
    assert 524_288 // (1000 * (4 * 8 + 32) + 500 * 8) == 7 and room.for_clients(WHERE, 1000, 500, 8) == 4
    assert room.for_clients(WHERE, 10**9, 500, 8) == 1
    assert room.for_samples(WHERE, 100, 4) == 262_144 // 400
    assert room.for_samples(WHERE, 100, 8) == 262_144 // 800
    assert room.for_samples(WHERE, 1, 4) == 1 << 16 and room.for_samples(WHERE, 10**9, 4) == 16


def test_free_memory_is_that_of_the_gpu_and_what_torch_keeps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9999))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert accelerator.free_bytes(torch.device("cuda")) == 1200


@ONLY_SIMULATED
def test_little_room_gives_the_same_model_in_more_kernels(device, same_draws, monkeypatch, tmp_path):
    with device() as here:
        whole = run("ldp", tmp_path, here.watch, here.to_cpu)
    monkeypatch.setattr(room, "free_bytes", lambda device: 50_000)  # a client and a step at a time
    with device() as poor:
        pieces = run("ldp", tmp_path, poor.watch, poor.to_cpu)
    assert same(pieces.theta, whole.theta, discrete=False) and pieces.loss == pytest.approx(whole.loss)
    assert poor.watch.steps == 3 * here.watch.steps and poor.watch.in_steps > 3 * here.watch.in_steps


@ONLY_SIMULATED
def test_a_cpus_caches_mean_nothing_to_a_device(device, same_draws, monkeypatch, tmp_path):
    kernels = []
    for size in (1 << 20, 1):
        for name in ("_CACHE", "_ACTIVATIONS", "_EVALUATION", "_TOGETHER"):
            monkeypatch.setattr(fast, name, size)
        with device() as here:
            run("transform linear", tmp_path, here.watch, here.to_cpu)
        kernels.append(here.watch.kernels)
    assert kernels[0] == kernels[1]


# -- the same numbers as on the CPU


@ONLY_SIMULATED
def test_draws_made_on_a_device_are_those_of_the_cpu(device):
    source, rows, width = Source(bytes(range(32))), torch.tensor([3, 0, (5 << 32) + 7, 2**31 + 1]), 300
    normals = torch.stack([source.normals(rows, torch.zeros(4, width), step) for step in (4, 5, 6)])
    uniforms, order = source.uniforms(rows, width, 2), source.permutation(1000)
    likes = [torch.zeros(n) for n in (1, 128, 129, 1000)]
    several = [source.of(n).normal(like, 3) for n, like in enumerate(likes)]
    with device() as here:
        there = rows.to(here.where)
        torch.testing.assert_close(on_cpu(source.normals_there(there, width, range(4, 7))), normals)
        assert torch.equal(on_cpu(source.uniforms_on(here.where, there, width, 2)), uniforms)
        assert torch.equal(on_cpu(source.permutation(1000, here.where)), order)
        made = normals_of([source.of(n) for n in range(4)], [like.to(here.where) for like in likes], 3)
        for a, b in zip(made, several, strict=True):
            torch.testing.assert_close(on_cpu(a), b)


@ONLY_SIMULATED
def test_steps_that_fit_share_one_draw(device, same_draws, tmp_path):
    """A draw of noise is two hundred kernels, however many steps and clients it serves."""
    with device() as here:
        source, rows = Source(bytes(32)), torch.arange(9, device=here.where)
        costs = []
        for steps in (range(1), range(20)):
            before = here.watch.kernels
            source.normals_there(rows, 700, steps)
            costs.append(here.watch.kernels - before)
    assert costs[0] == costs[1] <= 210


def config_of(name):
    cfg = config(name).copy()
    cfg.device = "auto"
    return cfg
