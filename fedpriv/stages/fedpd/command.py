"""`fedpriv distilled`: which view of the data can be classified, and what an attacker gets back of it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from fedpriv.building import build
from fedpriv.datasets.data import Data
from fedpriv.errors import UserError
from fedpriv.figures.grid import grid
from fedpriv.figures.saving import save_png
from fedpriv.files import write_table
from fedpriv.parts.making import make
from fedpriv.randomness.source import seed_for
from fedpriv.rounds.trainer import Trainer
from fedpriv.session.screen import console, preparing
from fedpriv.stages.fedpd import views
from fedpriv.stages.fedpd.inversion import invert
from fedpriv.stages.fedpd.quality import psnr, ssim
from fedpriv.stages.fedpd.release import clipped
from fedpriv.stages.fedpd.stage import FedPD

HELP = """\
usage: fedpriv distilled [group=option ...] [key=value ...] [images=8] [epochs=3] [steps=500] [out=FOLDER]

Takes what `fedpriv run stage=fedpd` takes, distils (or finds the distillation in the cache) and writes

  views.csv       accuracy of three classifiers on x, x_s and x_g of the test set (FedPD, Figure 2c)
  inversion.csv   PSNR and SSIM of images rebuilt by a white-box attack from x_g, clipped
                  as it is shared, and from x_p
  inversion.png   these images (Figure 3): raw training samples, for looking and not for a release

options
  images=8     training samples to attack, of as many clients as there are
  epochs=3     passes over the data for the two classifiers trained here; 0: the auxiliary one only
  steps=500    of the attack's optimiser
  out=FOLDER   default: outputs/distilled
"""
_OWN = {"images": "8", "epochs": "3", "steps": "500", "out": "outputs/distilled"}


def parse(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """This command's own options, and the rest: those of a run, with the stage if none is named."""
    own: dict[str, Any] = dict(_OWN)
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in own:
            own[key] = value
        else:
            rest.append(argument)
    for key, least in (("images", 1), ("epochs", 0), ("steps", 1)):
        if not own[key].isdigit() or int(own[key]) < least:
            raise UserError(f"{key}={own[key]}: must be a whole number of at least {least}")
        own[key] = int(own[key])
    if not any(a.startswith("stage=") for a in rest):
        rest.insert(0, "stage=fedpd")
    return own, rest


def distilled(cfg: DictConfig, own: dict[str, Any]) -> int:
    folder = Path(own["out"])
    with preparing():
        run = build(cfg, prepare=False)
        trainer, stage = run.trainer, run.trainer.stage
        if not isinstance(stage, FedPD) or not stage.distils:
            raise UserError("fedpriv distilled needs stage=fedpd with stage.share=features or bare")
        chosen = _chosen(trainer.train.size.tolist(), own["images"])
        run.prepare()
        table = _views(cfg, trainer, stage, run.data, own["epochs"])
        rows, pictures, columns = attack(trainer, stage, *chosen, own["steps"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("views.csv", table), ("inversion.csv", rows)):
            write_table(folder / name, [content[0], *(row.values() for row in content)])
        figure = grid(
            list(pictures.values()),
            rows=list(pictures),
            columns=columns,
            title="White-box inversion of shared features: what an attacker who knows the distiller rebuilds",
            shared=False,
        )
        save_png(figure, folder / "inversion.png")
    except OSError as problem:
        raise UserError(f"out={folder}: cannot be written ({problem.strerror}); choose another") from problem
    for row in table:
        shown = "  ".join(f"on {v} {row[f'accuracy_on_{v}']:.3f}" for v in views.VIEWS)
        console.print(f"classifier {row['classifier']:<22} {shown}", soft_wrap=True)
    for source in ("x_g", "x_p"):
        of = [r for r in rows if r["from"] == source]
        means = {k: sum(r[k] for r in of) / len(of) for k in ("psnr", "ssim")}
        console.print(f"rebuilt from {source}: PSNR {means['psnr']:.1f} dB, SSIM {means['ssim']:.3f}")
    console.print(f"results   {folder}: views.csv, inversion.csv, inversion.png (raw samples: not private)")
    return 0


def _views(cfg: DictConfig, trainer: Trainer, stage: FedPD, data: Data, epochs: int) -> list[dict[str, Any]]:
    distiller, auxiliary = stage.distiller, stage.classifier
    assert distiller is not None and auxiliary is not None
    classifiers = {"auxiliary": auxiliary}
    samples = trainer.train
    for view in ("x", "x_g") if epochs else ():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(trainer.seed, "views init", view))
            facts = {"shape": data.shape, "classes": data.classes, "vocabulary": data.vocabulary}
            model = make(cfg, "model", **facts).to(trainer.theta.device, trainer.theta.dtype)
        options = {"epochs": epochs, "seed": trainer.seed}
        classifiers[f"trained on {view}"] = views.train(model, samples, view, distiller, **options)
    return [
        {
            "classifier": name,
            **{
                f"accuracy_on_{v}": views.accuracy(
                    classifier, trainer.test, partial(views.seen, view=v, distiller=distiller)
                )
                for v in views.VIEWS
            },
        }
        for name, classifier in classifiers.items()
    ]


def attack(
    trainer: Trainer, stage: FedPD, clients: list[int], places: list[int], steps: int
) -> tuple[list[dict[str, Any]], dict[str, list[np.ndarray]], list[str]]:
    """The table, the rows of the picture and its column titles."""
    data, distiller = trainer.train, stage.distiller
    assert distiller is not None and data.shared is not None
    numbers = data.owned[clients, places]
    x, labels = data.take(numbers)
    starts = [sum(data.size.tolist()[:k]) for k in clients]  # the shared set has client after client
    shared = data.shared[0][[s + p for s, p in zip(starts, places, strict=True)]].to(x.dtype)
    sources = {"x_g": clipped(views.seen(x, "x_g", distiller), stage.clip), "x_p": shared}
    guesses = {name: invert(s, distiller, stage.clip, steps=steps) for name, s in sources.items()}
    span = float((distiller.high - distiller.low).max())
    raw = x.cpu().numpy()
    rows = [
        {
            "sample": int(numbers[i]),
            "client": clients[i],
            "label": int(labels[i]),
            "from": name,
            "psnr": psnr(raw[i], guess[i].cpu().numpy(), span),
            "ssim": ssim(raw[i], guess[i].cpu().numpy(), span),
        }
        for name, guess in guesses.items()
        for i in range(len(numbers))
    ]
    pictures = {"x": x, **sources, **{f"rebuilt\nfrom {n}": g for n, g in guesses.items()}}
    columns = [f"client {k}\nclass {int(y)}" for k, y in zip(clients, labels, strict=True)]
    return rows, {name: _images(p) for name, p in pictures.items()}, columns


def _images(batch: Tensor) -> list[np.ndarray]:
    return list(batch.cpu().numpy())


def _chosen(sizes: list[int], images: int) -> tuple[list[int], list[int]]:
    """Client and place of the samples attacked: everybody's first, then everybody's second and so on."""
    order = [(k, place) for place in range(max(sizes)) for k in range(len(sizes)) if place < sizes[k]]
    if images > len(order):
        raise UserError(f"images={images}: there are {len(order)} training samples; ask for fewer")
    return [k for k, _ in order[:images]], [place for _, place in order[:images]]
