"""What a finished run trained: `fedpriv.load(RUN)` gives the network, `fedpriv evaluate RUN` scores it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.datasets.base import Data
from fedpriv.errors import UserError
from fedpriv.files import read_json
from fedpriv.models.parts import Network
from fedpriv.parts.making import make, source
from fedpriv.session.model_file import MODEL, PERSONAL, of_client, read

_BATCH = 1024  # samples at a time


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float  # mean cross-entropy
    samples: int
    by_class: dict[int, tuple[float, int]]  # accuracy and samples of every class there is


def config_of(folder: Path) -> DictConfig:
    """What a finished run was told."""
    if not (folder / "summary.json").is_file():
        raise UserError(f"{folder}: no finished run; name the folder of one, which has a summary.json")
    content = OmegaConf.load(folder / "config.yaml")
    assert isinstance(content, DictConfig)
    return content


def load(folder: Path, client: int | None = None) -> Network:
    """The network a run trained, in evaluation mode; with `client` that client's own, if personal.pt is kept.

    It takes samples as `Data.prepare` scales them.
    """
    cfg, summary = config_of(folder), read_json(folder / "summary.json")
    if "sample" not in summary:
        raise UserError(f"{folder}: made before runs kept their model; resume=false makes it again")
    facts = {k: summary[k] for k in ("classes", "vocabulary")} | {"shape": tuple(summary["sample"])}
    with torch.random.fork_rng(devices=[]):
        network = Network(make(cfg, "transform", **facts), make(cfg, "model", **facts))
    if cfg.dataset.get("after_transform"):  # what the transform gives is scaled as the data say
        dataset, place = source(cfg)
        network.standard = dataset.load(place).standard
    network.to(torch.float64 if cfg.dtype == "float64" else torch.float32)
    state = read(folder / MODEL)
    if client is not None:
        state |= of_client(read(folder / PERSONAL), client)
    try:
        network.load_state_dict(state)
    except RuntimeError as problem:
        raise UserError(f"{folder / MODEL}: is of another network than {folder / 'config.yaml'}") from problem
    return network.eval()


def at_home(network: Network, cfg: DictConfig) -> list[str]:
    """The tensors of which every client has its own."""
    names = [f"transform.{n}" for n, _ in network.transform.named_parameters()]
    names += [f"model.{n}" for n in sorted(make(cfg, "algorithm").home(network.model))]
    return names + [n for n, b in network.named_buffers() if b.is_floating_point()]


def test_data(cfg: DictConfig, network_of: dict[str, Any]) -> Data:
    """The data set of a config, if it fits a network for these samples and classes."""
    dataset, folder = source(cfg)
    data: Data = dataset.load(folder)
    expected = (tuple(network_of["sample"]), network_of["vocabulary"])
    if (data.shape, data.vocabulary) != expected:
        raise UserError(
            f"dataset {data.name}: has samples of shape {list(data.shape)}, and the model takes "
            f"{network_of['sample']}; choose data like those it was trained with"
        )
    if data.classes > network_of["classes"]:
        raise UserError(
            f"dataset {data.name}: has {data.classes} classes, and the model knows {network_of['classes']}; "
            "choose data like those it was trained with"
        )
    return data


@torch.no_grad()
def score(network: Network, data: Data) -> Score:
    """On all test samples."""
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    right: list[Tensor] = []
    loss = 0.0
    for x, y in zip(data.x_test.split(_BATCH), data.y_test.split(_BATCH), strict=True):
        logits = network(data.prepare(x, dtype))
        right.append(logits.argmax(1) == y)
        loss += float(cross_entropy(logits, y, reduction="sum"))
    hits, labels = torch.cat(right), data.y_test
    of_class = {int(c): hits[labels == c] for c in labels.unique()}
    return Score(
        float(hits.double().mean()),
        loss / len(labels),
        len(labels),
        {c: (float(found.double().mean()), len(found)) for c, found in of_class.items()},
    )
