"""The clients' store of several ranks: each keeps its own clients' rows, and only participants' travel."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedpriv.ranks.divided import DividedStore
from fedpriv.ranks.group import Group
from fedpriv.ranks.starting import started_here
from fedpriv.rounds.trainer import Trainer
from tests.ranks.cases import left, run, without_pictures

CLIENTS, COUNT, WIDTH = 11, 3, 4


class Thread(Group):
    """A rank whose exchanges go through a list of all of them, in one process."""

    def __init__(self, rank: int, count: int, mail: list):
        self.rank, self.count, self.mail = rank, count, mail
        self.sent: list[tuple] = []

    def carry(self, tensor, leaving, arriving):
        self.sent.append((tensor, leaving, arriving))

    def hand(self, rows, source, target):
        if self.rank == source:
            self.mail.append((source, target, rows.clone()))
        elif self.rank == target:
            place = next(n for n, (*both, _) in enumerate(self.mail) if both == [source, target])
            rows[:] = self.mail.pop(place)[2]


def divided() -> list[DividedStore]:
    """Three ranks' stores, in which client k's row is k everywhere."""
    mail: list = []
    stores = [DividedStore(CLIENTS, Thread(rank, COUNT, mail)) for rank in range(COUNT)]
    for store in stores:
        store.claim("own", torch.zeros(WIDTH))
        first = int((store._places < CLIENTS).nonzero()[0])
        store["own"][:] = torch.arange(first, first + store.clients)[:, None]
    return stores


def exchange(stores: list[DividedStore]) -> int:
    """What the ranks have sent each other arrives; how many rows that were."""
    rows, each = 0, [store.ranks.sent for store in stores]
    for calls in zip(*each, strict=True):
        sent = [[tensor[rows_].clone() for rows_ in leaving] for tensor, leaving, _ in calls]
        for target, (tensor, _, arriving) in enumerate(calls):
            for source, places in enumerate(arriving):
                tensor[places] = sent[source][target]
                rows += len(places)
    for calls in each:
        calls.clear()
    return rows


def test_each_rank_has_its_share_of_the_rows():
    stores = divided()
    assert [len(store["own"]) for store in stores] == [3, 4, 4]
    assert [store["own"][:, 0].tolist() for store in stores] == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10]]


def test_rows_come_where_they_are_needed_and_go_back_changed():
    stores, parts = divided(), [torch.tensor(part) for part in ([0, 4, 10], [5], [3, 7])]
    for store in stores:
        store.fetch(parts)
    assert exchange(stores) == 3  # clients 4, 10 and 3 are not trained where they are kept
    for store, part in zip(stores, parts, strict=True):
        assert store["own"][store.at(part)][:, 0].tolist() == part.tolist()
        store["own"][store.at(part)] += 100
        store.settle(parts, "own")
    assert exchange(stores) == 3
    kept = torch.cat([store["own"][: store.clients, 0] for store in stores])
    changed = torch.isin(torch.arange(CLIENTS), torch.cat(parts))
    assert kept.tolist() == (torch.arange(CLIENTS) + 100 * changed).tolist()


def test_a_client_that_is_not_here_is_an_error_and_not_somebody_else():
    stores = divided()
    with pytest.raises(IndexError):
        stores[0]["own"][stores[0].at(torch.tensor([5]))]
    for part in ([5], [6], []):  # a guest is gone when others come
        for store in stores:
            store.fetch([torch.tensor(part, dtype=torch.int64), *[torch.arange(0)] * 2])
        exchange(stores)
        here = [k for k in range(CLIENTS) if stores[0].at(torch.tensor([k])) < len(stores[0]["own"])]
        assert here == [0, 1, 2, *part]
    assert len(stores[0]["own"]) == 4, "room for one guest at a time is enough"


@pytest.mark.parametrize("on_disk", [False, True])
def test_all_rows_are_written_by_the_first_rank_and_read_by_it_again(
    on_disk: bool, tmp_path: Path, monkeypatch
):
    stores, nowhere, files, memmap = divided(), torch.arange(0), [], np.memmap
    monkeypatch.setattr(np, "memmap", lambda *how, **more: files.append(how) or memmap(*how, **more))
    for store in stores:  # a guest is nobody's row
        store.fetch([torch.tensor([10]), nowhere, nowhere])
    exchange(stores)
    for store in reversed(stores):  # the first one last, for it is given what the others send
        whole = store.whole(tmp_path if on_disk else None)
    state = whole.state()
    assert state["own"][:, 0].tolist() == list(range(CLIENTS)) and list(tmp_path.iterdir()) == []
    assert len(files) == on_disk
    for store, given in zip(stores, ({"own": state["own"] + 100}, {}, {}), strict=True):
        store.load(given)
    kept = torch.cat([store["own"][: store.clients, 0] for store in stores])
    assert kept.tolist() == list(range(100, 100 + CLIENTS))


def test_groups_are_told_only_where_free_memory_decides_them():
    told = []
    engine = SimpleNamespace(groups=lambda work, data: [slice(0, 2)])
    ranks = SimpleNamespace(from_first=lambda groups: told.append(groups) or [slice(0, 1), slice(1, 2)])
    for device, groups in (("cpu", [slice(0, 2)]), ("meta", [slice(0, 1), slice(1, 2)])):
        trainer = SimpleNamespace(engine=engine, ranks=ranks, theta=torch.empty(1, device=device))
        assert Trainer._groups(trainer, None, None) == groups
    assert told == [[slice(0, 2)]]


MANY = (
    "clients=60",
    "sample_rate=0.15",
    "dp=none",
    "algorithm=ppsgd",
    "model.sizes=[1600]",
    "evaluate_every=9",
)


def test_a_round_exchanges_rows_of_its_participants_only(tmp_path: Path, monkeypatch):
    """Nine of sixty clients take part, each with a personal model. Of it a rank is given at most its part's
    rows and its own clients' changed ones, beside the groups' sums and the new model."""
    row, seen, kept, parts = 4 * (64 * 1600 + 1600 + 16_000 + 10), [], [], []
    round_, carry = Trainer.round, Group.carry

    def watched(trainer):
        before = trainer.ranks.received
        result = round_(trainer)
        seen.append((trainer.ranks.received - before, len(result.clients)))
        kept.append(len(trainer.store["personal"]))
        return result

    def carried(ranks, tensor, leaving, arriving):
        parts.append(sum(map(len, arriving)))
        carry(ranks, tensor, leaving, arriving)

    monkeypatch.setattr(Trainer, "round", watched)
    with without_pictures():
        alone = left(run(tmp_path / "alone", *MANY))
        assert seen and kept == [60, 60]
        seen.clear(), kept.clear()
        monkeypatch.setattr(Group, "carry", carried)
        with started_here(3):
            assert left(run(tmp_path / "three", *MANY)) == alone
    most, clients = seen[0]
    assert clients == 9 and sum(parts) > 0
    assert max(parts) <= clients and most < (2 * clients + clients + 1) * row < 60 * row
    assert kept[0] <= 20 + clients
