"""Messages block by block: the same model, never all of them at once, and whole where a part looks at all."""

import numpy as np
import pytest
import torch

import fedpriv
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.mechanisms.pldp_sign import PLDPSign
from fedpriv.rounds import trainer as rounds

SMALL = ("clients=12", "rounds=2", "local_steps=2", "model=linear", "budget=constant", "partition=iid")
APART = [
    ("dp=cdp",),
    ("dp=cdp", "dp_variant.bound=adaptive"),
    ("dp=cdp", "aggregator=size", "sample_rate=0.7"),
    ("dp=cdp", "algorithm=ppsgd"),
    ("dp=ldp",),
    ("dp=none", "algorithm=fedprox"),
    ("dp=none", "algorithm=scaffold"),
    ("dp=none", "algorithm=scaffold", "algorithm.option=I", "sample_rate=0.7"),
    ("dp=duchi",),
    ("dp=duchi", "dp_variant.range=adaptive", "budget=mixgauss1"),
    ("dp=pldp_gaussian", "budget=mixgauss1", "sample_rate=0.7"),
    ("dp=pldp_sign",),
    ("dp=ldp_update", "budget=mixgauss1"),
    ("dp=ldp_update", "dp_variant.noise=laplace"),
    ("dp=cdp_correlated", "participations=2", "sample_rate=1"),
]
TOGETHER = [
    ("dp=cdp", "dp_variant.bound=paper"),
    ("dp=none", "algorithm=fednova"),
    ("dp=ldp", "aggregator=pfa", "budget=mixgauss1"),
    ("dp=ddp",),
]


def rounds_of(overrides, monkeypatch, block):
    """The model after two rounds in blocks of so many bytes, and the most messages made at a time."""
    monkeypatch.setattr(rounds, "_BLOCK", block)
    trainer, seen = fedpriv.build(*SMALL, *overrides).trainer, []
    client = trainer.mechanism.client

    def watched(messages, round_, source):
        assert len(messages) == len(round_.clients) == len(round_.sizes) == len(round_.noise)
        seen.append(len(messages))
        return client(messages, round_, source)

    watched.by_client = getattr(client, "by_client", False)
    monkeypatch.setattr(trainer.mechanism, "client", watched)
    results = [trainer.round() for _ in range(2)]
    return trainer.theta, max(seen), [r.uplink for r in results]


@pytest.mark.parametrize("overrides", APART, ids=" ".join)
def test_blocks_give_the_model_that_all_messages_together_give(overrides, monkeypatch):
    row = 4 * 650  # bytes of a model of ten times 64 weights and ten biases
    whole, most, bytes_ = rounds_of(overrides, monkeypatch, 1 << 30)
    parts, at_once, same = rounds_of(overrides, monkeypatch, 3 * row + 1)
    assert most > 6 and at_once == 3 and bytes_ == same
    # Noise of thousands may cancel to a small weight: rounding is measured by the largest.
    assert (parts - whole).abs().max() <= 1e-6 * whole.abs().max()


@pytest.mark.parametrize("size", [1, 2, 5, 11])
@pytest.mark.parametrize("overrides", [case for case in APART if case[0] != "dp=none"], ids=" ".join)
def test_what_leaves_a_client_has_the_same_bits_in_any_block(overrides, size):
    trainer = fedpriv.build(*SMALL, *overrides).trainer
    round_ = trainer.setting.round(
        1, np.arange(12), 12.0, False, lr=0.1, noise=trainer.ledger.guarantee.noise, start=trainer.theta
    )
    messages = torch.randn(12, 650, generator=torch.Generator().manual_seed(0))
    messages[3] *= 1e3  # so that some are clipped and some are not
    client, source = trainer.mechanism.client, trainer.source.of("clients")
    whole = client(messages.clone(), round_, source)
    parts = [slice(n, n + size) for n in range(0, 12, size)]
    made = torch.cat([client(messages[part].clone(), round_.of(part), source) for part in parts])
    assert trainer.mechanism.apart("client") and torch.equal(made, whole)


@pytest.mark.parametrize("overrides", TOGETHER, ids=" ".join)
def test_a_part_that_looks_at_all_clients_gets_all(overrides, monkeypatch):
    theta, most, _ = rounds_of(overrides, monkeypatch, 1)
    whole, _, _ = rounds_of(overrides, monkeypatch, 1 << 30)
    assert most == 12 and torch.equal(theta, whole)


def test_an_overridden_method_is_trusted_with_parts_only_if_it_says_so():
    class Ranked(FedAvg):
        def message(self, local, round_, store):
            return local - local.mean(0)

    class Jointly(PLDPSign):
        def perturb(self, weights, round_, source):
            return weights - weights.mean(0)

    assert FedAvg().apart("message") and not Ranked().apart("message")
    assert PLDPSign().apart("client") and not Jointly().apart("client")


def test_the_memory_of_a_round_is_used_again():
    trainer = fedpriv.build(*SMALL, "dp=cdp", "sample_rate=0.7").trainer
    first = trainer._room(12)
    assert trainer._room(5).data_ptr() == first.data_ptr() and trainer._room(5).shape == (5, 650)
