"""model.pt is what was trained, opens with torch alone, and holds nothing that stays at a client's home."""

import pytest
import torch

import fedpriv
from fedpriv.errors import UserError
from fedpriv.session import checkpoint
from fedpriv.session.model_file import MODEL, PERSONAL
from tests.conftest import SMALL


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(*overrides):
    return fedpriv.run(*SMALL, *overrides, quiet=True)


def test_the_model_kept_has_the_accuracy_the_run_reports(fedpriv):
    import fedpriv as door
    from fedpriv.session.trained import config_of, score, test_data

    done = door.run(*SMALL, "dp=none", "lr=0.5", quiet=True)
    data = test_data(config_of(done.folder), done.summary)
    found = score(door.load(done.folder), data)
    assert found.accuracy == pytest.approx(done.summary["accuracy_global_last"], abs=1e-6)
    assert found.loss == pytest.approx(done.metrics["loss_global"].iloc[-1], rel=1e-4)
    assert sum(count for _, count in found.by_class.values()) == found.samples == 360

    told = fedpriv("evaluate", str(done.folder))
    assert told.code == 0 and f"accuracy  {found.accuracy:.4f}" in told.out


def test_it_is_a_plain_state_dict_of_the_loaded_network():
    done = trained("dp=ldp")
    state = torch.load(done.folder / MODEL, weights_only=True)
    network = fedpriv.load(done.folder)
    assert list(state) == list(network.state_dict())
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())
    held, _ = checkpoint.load(done.folder)
    assert torch.equal(torch.cat([v.reshape(-1) for v in state.values()]), held["theta"])
    assert not (done.folder / PERSONAL).exists()


def test_under_a_guarantee_what_stays_at_home_is_in_no_model(tmp_path):
    """The transform of every client is trained at home without noise: model.pt has it as it began."""
    done = trained("dp=ldp", "transform=linear", "transform.lr=0.5", "personal=true")
    own = torch.load(done.folder / PERSONAL, weights_only=True)
    fresh = fedpriv.build(fedpriv.compose(*SMALL, "dp=ldp", "transform=linear", "transform.lr=0.5"))
    state = torch.load(done.folder / MODEL, weights_only=True)
    home = [n for n in state if n.startswith("transform.")]
    assert home and sorted(own) == sorted(home)
    for name in home:
        assert torch.equal(state[name], fresh.network.state_dict()[name])
        assert len(own[name]) == 4 and not torch.equal(own[name][0], own[name][1])
    assert "personal.pt" in " ".join(done.privacy["not_covered"])
    two = fedpriv.load(done.folder, client=2)
    assert torch.equal(two.state_dict()[home[0]], own[home[0]][2])
    with pytest.raises(UserError, match="from 0 to 3"):
        fedpriv.load(done.folder, client=4)


def test_without_a_guarantee_it_is_the_clients_mean():
    done = trained("dp=none", "transform=linear", "personal=true")
    own = torch.load(done.folder / PERSONAL, weights_only=True)
    state = torch.load(done.folder / MODEL, weights_only=True)
    for name, values in own.items():
        assert torch.allclose(state[name], values.mean(0), atol=1e-6)


def test_keeping_personal_parts_is_the_same_run():
    first, second = trained("transform=linear"), trained("transform=linear", "personal=true")
    assert first.folder == second.folder


def test_torch_opens_a_checkpoint_and_former_ones_are_read(tmp_path):
    done = trained("dp=ldp")
    path = done.folder / checkpoint.NAME
    opened = torch.load(path, weights_only=True)
    held, problems = checkpoint.load(done.folder)
    assert not problems and torch.equal(opened["theta"], held["theta"])
    content = path.read_bytes()
    path.write_bytes(content[-32:] + content[:-32])  # as it was: the checksum in front
    before, problems = checkpoint.load(done.folder)
    assert not problems and torch.equal(before["theta"], opened["theta"])
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    path.write_bytes(damaged)
    state, problems = checkpoint.load(done.folder)
    assert state is None and len(problems) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no finished run"),
        ([], "usage"),
        (["RUN", "client=1"], "personal.pt: no such file"),
        (["RUN", "client=x"], "client=x: must be"),
        (["RUN", "clients=3"], "clients=3: choose one of"),
        (["RUN", "dataset=nothing"], "dataset=nothing: no such option"),
        (["RUN", "dataset.normalize=upside"], "dataset.normalize=upside: must be one of"),
    ],
)
def test_evaluate_refuses_in_one_line(fedpriv, arguments, words):
    import fedpriv as door

    done = door.run(*SMALL, quiet=True) if "RUN" in arguments else None
    told = fedpriv("evaluate", *(str(done.folder) if a == "RUN" else a for a in arguments))
    assert told.code == 2 and words in told.err + told.out
    assert told.err.count("\n") <= 1


def test_a_damaged_model_is_one_line():
    done = trained()
    (done.folder / MODEL).write_bytes(b"PK nothing")
    with pytest.raises(UserError, match="damaged"):
        fedpriv.load(done.folder)
    (done.folder / MODEL).unlink()
    with pytest.raises(UserError, match="no such file"):
        fedpriv.load(done.folder)
