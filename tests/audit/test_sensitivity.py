"""Sound code passes; a fault in any seam is named. No part knows that it is audited."""

import pytest
import torch

from fedpriv import building
from fedpriv.audit import mechanism, sensitivity
from fedpriv.audit.noise import quiet
from fedpriv.audit.taps import Bench
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.work import Private
from fedpriv.mechanisms.cdp_correlated import CorrelatedCDP
from fedpriv.mechanisms.ldp import DPSGD
from fedpriv.mechanisms.ldp_update import LDPUpdate
from fedpriv.mechanisms.participation import Poisson
from fedpriv.randomness.source import Source
from fedpriv.rounds import schedule
from fedpriv.uploads.secure_sum import SecureSum

TINY = ("model=logreg", "clients=5", "rounds=3", "batch_size=16", "threads=1")


def failed(config, *overrides: str, choices: int = 6) -> list[str]:
    """The checks that are not kept."""
    found = sensitivity.audit(Bench(config(*TINY, *overrides)), choices).findings
    assert len(found) > 5 and all(f.text for f in found)
    return [f.check for f in found if f.verdict == "VIOLATED"]


TWICE = "dp=cdp_correlated clients=8 rounds=8 participations=2 separation=4 sample_rate=0.25"
SOUND = [
    "dp=ldp",
    "dp=ldp partition=dirichlet batch_size=64",  # clients whose steps are fewer than others'
    "dp=cdp dp_variant.bound=adaptive agg=size",
    "dp=ddp upload.protocol=masked",
    "dp=pldp_gaussian dtype=float64",
    "dp=duchi",
    TWICE,
    f"{TWICE} dp_variant.matrix=blt",
    "dp=ldp_update dp_variant.noise=laplace",
]


@pytest.mark.parametrize("words", SOUND)
def test_sound_compositions_pass(config, words):
    assert failed(config, *words.split()) == []


def private(clip: float, noise: float):
    original = DPSGD.private

    def made(self, clients, source):
        given = original(self, clients, source)
        return Private(clip * given.clip_norm, noise * given.noise_std, given.lot, given.noise)

    return made


@pytest.mark.parametrize(("clip", "noise"), [(1.5, 1.0), (1.0, 0.85)])
def test_too_long_a_sample_or_too_little_noise(config, monkeypatch, clip, noise):
    monkeypatch.setattr(DPSGD, "private", private(clip, noise))
    assert failed(config, "dp=ldp") == ["move of a local step"]


def test_a_sum_that_is_divided_by_how_many_are_in_the_batch(config, monkeypatch):
    """A sample that is alone then counts as much as a whole lot of 16."""
    original = FastEngine._clipped

    def divided(self, tape, own, given):
        factor, sound = original(self, tape, own, given)
        return factor * given.lot / own.sum(1, keepdim=True).clamp(min=1), sound

    monkeypatch.setattr(FastEngine, "_clipped", divided)
    found = sensitivity.audit(Bench(config(*TINY, "dp=ldp")), 6).findings
    wrong = [f for f in found if f.verdict == "VIOLATED"]
    assert [f.check for f in wrong] == ["move of a local step"]
    assert "alone in its batch" in wrong[0].text and wrong[0].measured == pytest.approx(16, rel=0.1)


def test_clients_that_join_too_often(config, monkeypatch):
    original = Source.below
    monkeypatch.setattr(Poisson, "draw", lambda self, able, setting, source: (
        (original(source, 0.6, range(setting.clients), 1)[:, 0].numpy() & able).nonzero()[0],
        setting.sample_rate * setting.clients,
    ))  # fmt: skip
    assert failed(config, "dp=cdp", "sample_rate=0.5") == ["clients are drawn no more often than charged"]


ALL_ROUNDS = ["move of all rounds of a client together"]


@pytest.mark.parametrize("matrix", ["banded", "blt", "tree"])
def test_shared_noise_that_is_too_little_for_two_rounds(config, monkeypatch, matrix):
    """Nine tenths of what two participations need: a ninth too far, in every kind of matrix."""
    original = CorrelatedCDP.calibrate

    def calibrate(self, setting):
        made = original(self, setting)
        self.scale *= 0.9
        return made

    monkeypatch.setattr(CorrelatedCDP, "calibrate", calibrate)
    assert failed(config, *TWICE.split(), f"dp_variant.matrix={matrix}") == ALL_ROUNDS


def test_rounds_that_share_noise_and_come_too_close(config, monkeypatch):
    """Separation 4 is charged; one that is dealt to neighbouring rounds is charged too little."""
    monkeypatch.setattr(building, "deal", lambda *given: schedule.deal(*given[:-1], 1))
    assert failed(config, *TWICE.split()) == ALL_ROUNDS


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_for_an_update_that_is_absent_instead_of_replaced(config, monkeypatch, noise):
    original = LDPUpdate._std
    monkeypatch.setattr(LDPUpdate, "_std", lambda self, z: original(self, z) / 2)
    words = ("dp=ldp_update", f"dp_variant.noise={noise}")
    assert failed(config, *words) == ["move of what leaves a client"]


def test_a_secure_sum_without_masks(config, monkeypatch):
    monkeypatch.setattr(SecureSum, "_mask", lambda self, seed, like: torch.zeros_like(like[0]))
    words = ("dp=ddp", "upload.protocol=masked", "sample_rate=0.5")
    assert failed(config, *words) == ["single shares are hidden"]


def own(name: str) -> str:
    return f"dp_variant._target_=tests.audit.own.{name}"


def of_own(config, name: str) -> list[str]:
    return failed(config, "dp=none", own(name), "sample_rate=0.5", "epsilon=30")


def test_a_mechanism_of_ones_own_passes_without_code_for_it(config):
    assert of_own(config, "Cubed") == []


@pytest.mark.parametrize("name", ["Longer", "Quieter", "Elsewhere"])
def test_faults_in_a_mechanism_of_ones_own_are_moves(config, name):
    assert "move of the server's update" in of_own(config, name)


def test_noise_of_ones_own_that_is_not_fresh(config):
    assert "noise follows from the secret" in of_own(config, "Stale")


def test_that_a_round_releases_nothing_tells(config):
    """A client that sends makes the round speak, half of the time: epsilon is far above what is charged."""
    words = ("dp=none", own("Telling"), "sample_rate=0.5", "epsilon=30")
    found = mechanism.audit(Bench(config(*TINY, *words)), 200)
    assert found.violated
    assert [f.check for f in found.findings if f.verdict == "VIOLATED"]
    sound = mechanism.audit(Bench(config(*TINY, "dp=none", own("Cubed"), *words[2:])), 200)
    assert not sound.violated and sound.bound <= sound.against


def test_an_answer_that_leans_too_far(config, monkeypatch):
    from fedpriv.mechanisms import duchi

    bench = Bench(config(*TINY, "dp=duchi", "epsilon=1"))
    assert not mechanism.audit(bench, 200).violated
    original = duchi.two_point
    monkeypatch.setattr(duchi, "two_point", lambda w, c, r, e, u: original(w, c, r, 1.2 * e, u))
    found = mechanism.audit(bench, 200)
    assert found.violated and 1.0 < found.bound < 1.2


def test_nothing_is_left_of_a_tap(config):
    """After an audit the run trains as if there had been none."""
    bench = Bench(config(*TINY, "dp=ldp"))
    bench.reset()
    bench.trainer.round()
    before = bench.trainer.theta.clone()
    sensitivity.audit(bench, 2)
    bench.reset()
    bench.trainer.round()
    assert torch.equal(before, bench.trainer.theta)
    with quiet():
        assert not Source(bytes(32)).normal(torch.zeros(5)).any()
    assert Source(bytes(32)).normal(torch.zeros(5)).all()


def test_no_privacy_is_nothing_to_check(config):
    found = sensitivity.audit(Bench(config(*TINY, "dp=none")))
    assert not found.violated and "no differential privacy is promised" in found.says
