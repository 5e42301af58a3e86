"""`fedpriv features`: encode a dataset once; `fedpriv run dataset=features` then trains on the file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.config.catalogue import targets
from fedpriv.datasets.base import reading
from fedpriv.datasets.data import Data
from fedpriv.device import choose_device
from fedpriv.encoders.base import Encoder
from fedpriv.encoders.checkpoint import checkpoint
from fedpriv.encoders.clip import clip
from fedpriv.encoders.extract import extract
from fedpriv.encoders.imagenet import imagenet
from fedpriv.encoders.settings import ARCHS, FeatureSettings, option_lines, parse
from fedpriv.errors import UserError
from fedpriv.session.screen import console

HELP = """\
fedpriv features: run the images of a dataset through a frozen encoder once and keep the feature vectors

usage: fedpriv features dataset=NAME encoder=NAME [key=value ...]

examples
  fedpriv features dataset=cifar10 encoder=resnext
  fedpriv features dataset=cifar10 encoder=clip arch=ViT-B-32 pretrained=openai
  fedpriv features dataset=cifar10 encoder=checkpoint weights=simclr.pt arch=resnet50 normalize=unit
  fedpriv run dataset=features dataset.path=cifar10_resnext-resnext50_32x4d.npz model=linear

options
{options}

encoders
{encoders}

resnet and resnext have torchvision's ImageNet weights, downloaded once. clip needs open_clip
(pip install open_clip_torch) and knows all its models. checkpoint is a state dict saved with torch.save, of
SimCLR for example: nested under state_dict, model or encoder and with names that begin with module., model.,
backbone., encoder. or convnet. it is found; its classifier or projection head is ignored. resnext29_8x4d is
PrivateFL's encoder trained on CIFAR-100.

Images are taken as stored, resized, scaled with the encoder's own statistics; grey ones are repeated to three
channels. The file holds x_train, y_train, x_test, y_test, the mean and variance of every training feature and
the source. A killed extraction continues with the same command. To normalise features with the statistics of
public ones: dataset.dn=source dataset.statistics=FILE.npz (`fedpriv list dataset`).
"""


def features(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        encoders = "\n".join(f"  {name:<11} {', '.join(archs)}" for name, archs in ARCHS.items())
        print(HELP.format(options=option_lines(), encoders=encoders), end="")
        return 0
    settings = parse(arguments)
    identity, target = settings.identity(), settings.target
    if target.exists() and not settings.overwrite:
        _same(target, identity)
        console.print(f"already there; overwrite=true makes it anew: {target}", soft_wrap=True)
        return 0
    device = choose_device(settings.device)
    encoder = _encoder(settings)
    data = targets("dataset")[str(settings.dataset)]().load(settings.folder)
    identity["data_sha256"] = _fingerprint(data)
    options = {key: getattr(settings, key) for key in ("dtype", "batch_size", "overwrite")}
    try:
        extract(encoder, data, target, identity, device=device, **options)
    except OSError as problem:
        raise UserError(
            f"{problem.filename or target}: cannot be written ({problem.strerror}); set output= to a file "
            "in a folder of your own"
        ) from problem
    path = target.name if settings.output is None else target.resolve()
    console.print(f"features  {target}", soft_wrap=True)
    console.print(f"use       fedpriv run dataset=features dataset.path={path} model=linear", soft_wrap=True)
    return 0


def _encoder(settings: FeatureSettings) -> Encoder:
    arch, size = str(settings.arch), settings.size
    if settings.encoder == "clip":
        return clip(arch, str(settings.pretrained), size)
    if settings.encoder == "checkpoint":
        return checkpoint(Path(str(settings.weights)), arch, size, str(settings.normalize))
    return imagenet(str(settings.encoder), arch, size)


def _fingerprint(data: Data) -> str:
    state = hashlib.sha256()
    for x in (data.x_train, data.x_test):
        state.update(x.contiguous().numpy().data)
    return state.hexdigest()


def _same(target: Path, identity: dict[str, Any]) -> None:
    """Refuse a finished file that holds something else."""
    with reading("features", target), np.load(target, allow_pickle=False) as content:
        source = json.loads(str(content["source"])) if "source" in content else {}
    if changed := [f"{key}={source.get(key)}" for key in identity if source.get(key) != identity[key]]:
        held = f"features with {', '.join(changed)}" if source else "features of unknown source"
        raise UserError(f"{target} holds {held}; set output= to another file, or overwrite=true")
