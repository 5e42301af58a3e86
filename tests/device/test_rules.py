"""The simulated device refuses what CUDA refuses, allows what it allows, and counts what it costs."""

import copy
import math

import pytest
import torch
from torch import nn

from tests.device.simulated import MPS_LACKS, RulesError, on_cpu, simulated
from tests.device.watching import Watch


@pytest.fixture
def watch(monkeypatch):
    watched = Watch()
    with simulated(monkeypatch, watched):
        yield watched


def ones(*shape, **options):
    return torch.ones(*shape, device="meta", **options)


MIXED = {
    "a sum": lambda: ones(3) + torch.ones(3),
    "a product": lambda: ones(3, 3) @ torch.ones(3, 3),
    "a product with a number": lambda: torch.dot(ones(1), torch.ones(())[None]),
    "a join": lambda: torch.cat([ones(2), torch.zeros(0)]),
    "a stack with a number": lambda: torch.stack([ones(()), torch.ones(())]),
    "a choice": lambda: torch.where(ones(2) > 0, ones(2), torch.ones(2)),
    "into the CPU's number": lambda: torch.ones(()).add_(ones(())),
    "a CPU tensor by a device's index": lambda: torch.ones(3)[ones(2, dtype=torch.int64)],
    "writing to a CPU tensor by a device's index": lambda: torch.ones(3).__setitem__(ones(1) > 0, 1.0),
    "writing the CPU's rows": lambda: ones(3, 2).__setitem__(torch.tensor([0, 1]), torch.ones(2, 2)),
    "selecting by a CPU index": lambda: ones(3).index_select(0, torch.tensor([0])),
    "gathering by a CPU index": lambda: ones(3).gather(0, torch.tensor([0])),
    "adding by a CPU index": lambda: ones(3).index_add_(0, torch.tensor([0]), ones(1)),
    "the CPU's generator": lambda: torch.rand(3, device="meta", generator=torch.Generator()),
    "the device's generator": lambda: torch.rand(3, generator=torch.Generator(device="meta")),
    "a product of integers": lambda: ones(2, 2, dtype=torch.int64) @ ones(2, 2, dtype=torch.int64),
    "a network elsewhere": lambda: nn.Linear(3, 2)(ones(1, 3)),
    "a Parameter's data": lambda: setattr(nn.Linear(3, 2).to("meta").weight, "data", torch.ones(2, 3)),
}


@pytest.mark.parametrize("what", MIXED)
def test_what_cuda_refuses(what, watch):
    with pytest.raises(RulesError):
        MIXED[what]()


def test_what_cuda_allows(watch):
    assert (ones(3) * torch.tensor(2.0)).tolist() == [2.0] * 3
    assert (torch.tensor(2.0) - ones(3)).tolist() == [1.0] * 3
    assert torch.where(ones(2) > 0, torch.tensor(5.0), ones(2)).tolist() == [5.0, 5.0]
    assert torch.arange(3, device="meta")[torch.tensor([2, 0])].tolist() == [2, 0]
    rows = ones(3)
    rows[torch.tensor([1])] = torch.tensor(4.0)
    rows[0] = torch.tensor(7.0)
    assert rows.tolist() == [7.0, 4.0, 1.0]
    drawn = torch.rand(3, device="meta", generator=torch.Generator(device="meta").manual_seed(5))
    assert torch.equal(on_cpu(drawn), torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_no_way_to_numpy_but_through_the_cpu(watch):
    with pytest.raises(TypeError):
        ones(3).numpy()
    assert ones(3).cpu().numpy().sum() == 3


def test_data_reach_the_device_however_they_are_made(watch):
    for made in (
        torch.tensor([1.0, 2.0], device="meta"),
        torch.as_tensor([1.0, 2.0], device="meta"),
        torch.tensor([1.0, 2.0]).to("meta"),
        ones(1).new_tensor([1.0, 2.0]),
        torch.linspace(1, 2, 2, device="meta"),
    ):
        assert made.device.type == "meta" and made.cpu().tolist() == [1.0, 2.0]


def test_gradients_are_those_of_the_cpu(watch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    there, x = copy.deepcopy(network).to("meta"), torch.randn(5, 1, 4, 4)
    for net, inputs in ((network, x), (there, x.to("meta"))):
        net(inputs).logsumexp(1).sum().backward()
    for a, b in zip(network.parameters(), there.parameters(), strict=True):
        assert isinstance(b, nn.Parameter) and torch.equal(a.grad, on_cpu(b.grad))


def test_shapes_changed_in_place(watch):
    assert torch.arange(3, device="meta").unsqueeze_(0).T.squeeze_(1).shape == (3,)
    product = ones(3) @ ones(3, 888)  # torch squeezes it in place
    assert [t.shape for t in product.chunk(2)] == [(444,), (444,)] and product.tolist() == [3.0] * 888


def test_in_threads_too(watch):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: torch.zeros(2, device="meta").tolist()).result() == [0.0, 0.0]


WAITS = {
    "item": lambda t: t.sum().item(),
    "float": lambda t: float(t[0]),
    "bool": lambda t: bool((t > 0).all()),
    "int": lambda t: int(t.sum()),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "nonzero": lambda t: t.nonzero(),
    "where of one": lambda t: torch.where(t > 0),
    "a boolean index": lambda t: t[t > 0],
    "writing by a boolean index": lambda t: t.__setitem__(t > 0, 2.0),
    "masked_select": lambda t: t.masked_select(t > 0),
    "unique": lambda t: t.unique(),
    "equal": lambda t: torch.equal(t, t),
    "bincount": lambda t: t.long().bincount(),
    "an index from the CPU": lambda t: t[torch.tensor([0])],
    "a tensor made there of a list": lambda t: torch.tensor([1.0], device=t.device),
    "a tensor of the CPU": lambda t: torch.ones(2).to(t.device),
    "copied into": lambda t: t.copy_(torch.ones(3)),
    "repeated by counts": lambda t: t.repeat_interleave(t.long()),
    "eigenvalues": lambda t: torch.linalg.eigh(t[:, None] * t),
}
RUNS_ON = {
    "sums": lambda t: t.sum(),
    "masks": lambda t: torch.where(t > 0, t, 0.0).masked_fill(t > 1, 0.0),
    "new tensors": lambda t: torch.zeros(3, device=t.device) + torch.arange(3, device=t.device),
    "an index of the device": lambda t: t[torch.zeros(2, dtype=torch.int64, device=t.device)],
    "asked not to wait": lambda t: torch.ones(2).to(t.device, non_blocking=True),
    "numbers of the host": lambda t: (t * 2.0 + torch.tensor(1.0)).clamp(max=3),
}


@pytest.mark.parametrize("what", [*WAITS, *RUNS_ON])
def test_where_the_host_waits(what, watch):
    t = ones(3)
    watch.stepping = True
    {**WAITS, **RUNS_ON}[what](t)
    assert bool(watch.waits) == (what in WAITS)


def test_kernels_and_bytes_are_counted(watch):
    a = ones(4)  # 1
    b = (a + a).view(2, 2).T.reshape(-1)  # 2, and a copy
    torch.empty(3, device="meta")
    assert watch.kernels == 3 and watch.moved == 0
    b.cpu()
    torch.ones(2, dtype=torch.float64).to("meta")
    assert watch.moved == 16 + 16 and math.isclose(float(b[0]), 2) and watch.moved == 36


def test_a_poorer_device(monkeypatch):
    with simulated(monkeypatch, Watch(), MPS_LACKS):
        with pytest.raises(RulesError):
            ones(3, dtype=torch.float64)
        with pytest.raises(RulesError):
            ones(3).double()
        with pytest.raises(RulesError):
            torch.linalg.eigh(ones(2, 2))
