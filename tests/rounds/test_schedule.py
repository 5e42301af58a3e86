"""Cross-device participation: exactly so many rounds a client, and the charge that follows from it."""

import numpy as np
import pytest

from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.privacy.accountants import RDP
from fedpriv.privacy.events import SampledGaussian
from fedpriv.rounds.schedule import deal
from tests.conftest import SMALL


@pytest.mark.parametrize(("clients", "rounds", "times"), [(100, 10, 1), (100, 20, 2), (23, 6, 3), (7, 7, 7)])
def test_everyone_takes_part_exactly_so_often_and_once_a_pass(clients, rounds, times):
    dealt = deal(clients, rounds, times, times / rounds, np.random.default_rng(0))
    assert len(dealt) == rounds
    length = rounds // times
    for first in range(0, rounds, length):
        together = np.concatenate(dealt[first : first + length])
        assert sorted(together.tolist()) == list(range(clients))
    sizes = [len(d) for d in dealt]
    assert max(sizes) - min(sizes) <= 1 and all((np.diff(d) > 0).all() for d in dealt)


def test_passes_are_dealt_anew():
    dealt = deal(100, 20, 2, 0.1, np.random.default_rng(0))
    assert any(not np.array_equal(a, b) for a, b in zip(dealt[:10], dealt[10:], strict=True))


@pytest.mark.parametrize(
    ("clients", "rounds", "times", "rate", "message"),
    [
        (100, 10, 3, 0.3, "multiple"),
        (100, 10, 1, 1.0, "means sample_rate=0.1"),
        (5, 10, 1, 0.1, "cannot fill"),
    ],
)
def test_what_cannot_be_dealt_is_refused(clients, rounds, times, rate, message):
    with pytest.raises(UserError, match=message):
        deal(clients, rounds, times, rate, np.random.default_rng(0))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("dp", ["ldp", "cdp", "ddp"])
def test_a_run_charges_exactly_the_participations(config, dp, times):
    options = (f"dp={dp}", "rounds=4", f"sample_rate={times / 4}", f"participations={times}", "clients=8")
    trainer = build(config(*SMALL, *options, "epsilon=30")).trainer
    seen = np.zeros(8, dtype=int)
    for _ in range(4):
        result = trainer.round()
        seen[result.clients] += 1
    assert (seen == times).all() and (trainer.ledger.participations == times).all()
    spent = trainer.ledger.provable()
    assert (spent <= 30).all() and (spent > 0.9 * 30).all()
    assert trainer.wiring.participation.rounds_charged(trainer.setting) == times


def test_a_known_schedule_amplifies_nothing(config):
    """One round with certainty costs a plain Gaussian: z is that of a single release, whatever the rate."""
    options = ("dp=cdp", "rounds=4", "sample_rate=0.25", "clients=8")
    fixed = build(config(*SMALL, *options, "participations=1")).trainer
    drawn = build(config(*SMALL, *options)).trainer
    z = fixed.mechanism.z
    assert RDP().epsilon((SampledGaussian(1.0, z),), 1, 1e-3) == pytest.approx(8, rel=0.01)
    assert z != drawn.mechanism.z and "exactly 1 rounds" in fixed.ledger.guarantee.sampler


@pytest.mark.parametrize("separation", [1, 2, 5, 9, 10])
def test_rounds_of_a_client_are_so_far_apart(separation):
    dealt = deal(57, 40, 4, 0.1, np.random.default_rng(0), separation)
    assert [len(d) for d in dealt] == [len(d) for d in deal(57, 40, 4, 0.1, np.random.default_rng(1))]
    rounds = [[number for number, who in enumerate(dealt) if client in who] for client in range(57)]
    assert all(len(own) == 4 for own in rounds)
    assert min(np.diff(own).min() for own in rounds) >= separation
    if separation < 10:  # the passes differ
        assert any(not np.array_equal(a, b) for a, b in zip(dealt[:10], dealt[10:20], strict=True))


def test_without_separation_every_pass_is_a_permutation_of_its_own():
    """As before there was such a key: committed results were dealt this way."""
    random = np.random.default_rng(3)
    passes = [np.array_split(random.permutation(23), 2) for _ in range(3)]
    expected = [np.sort(part) for groups in passes for part in groups]
    assert all(map(np.array_equal, deal(23, 6, 3, 0.5, np.random.default_rng(3)), expected))
