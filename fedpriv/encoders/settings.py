"""The options of `fedpriv features`: their defaults, their meaning, and what is refused in one line."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedpriv.config.catalogue import targets
from fedpriv.config.checks import check_limits
from fedpriv.config.schema import described
from fedpriv.datasets import default_data_dir
from fedpriv.datasets.chmnist import CHMNIST
from fedpriv.datasets.digits import Digits
from fedpriv.datasets.download import digest
from fedpriv.datasets.vision_sets import VisionSet
from fedpriv.encoders import checkpoint, imagenet, resnext29
from fedpriv.errors import UserError

IMAGES = tuple(
    name
    for name, kind in targets("dataset").items()
    if isinstance(kind, type) and issubclass(kind, VisionSet | CHMNIST | Digits)
)
# The architectures of each encoder, its default first; open_clip knows more than the one named here.
ARCHS = {
    "resnet": imagenet.RESNETS,
    "resnext": imagenet.RESNEXTS,
    "clip": ("ViT-B-32",),
    "checkpoint": checkpoint.ARCHS,
}
ONLY = {"pretrained": "clip", "weights": "checkpoint", "normalize": "checkpoint"}


def _option(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass
class FeatureSettings:
    dataset: str | None = _option(None, f"images to encode: {', '.join(IMAGES)}")
    encoder: str | None = _option(None, f"one of {', '.join(ARCHS)}", choices=tuple(ARCHS))
    arch: str | None = _option(None, "the network, below; else the first of its encoder")
    weights: str | None = _option(None, "checkpoint: the local file")
    normalize: str | None = _option(
        None,
        f"checkpoint: {', '.join(checkpoint.NORMALIZE)} as it was trained; else imagenet, at 32x32 cifar",
        choices=tuple(checkpoint.NORMALIZE),
    )
    pretrained: str | None = _option(None, "clip: open_clip's name of the weights; else openai")
    size: int | None = _option(
        None, "height and width of resized images; else the encoder's own", least=1, most=1024
    )
    dtype: str = _option("float16", "numbers in the file, or float32", choices=("float16", "float32"))
    batch_size: int = _option(64, "images encoded at once", least=1, most=65_536)
    device: str = _option("auto", "auto, cpu, cuda or mps", choices=("auto", "cpu", "cuda", "mps"))
    data_dir: str | None = _option(None, "folder of the data sets; else FEDPRIV_DATA, else the cache folder")
    output: str | None = _option(None, "the file; else DATA_DIR/features/DATASET_ENCODER-ARCH.npz")
    overwrite: bool = _option(False, "true starts anew, whatever is there")

    @property
    def folder(self) -> Path:
        return Path(self.data_dir).expanduser() if self.data_dir else default_data_dir()

    @property
    def target(self) -> Path:
        usual = self.folder / "features" / f"{self.dataset}_{self.encoder}-{self.arch}.npz"
        return Path(self.output).expanduser() if self.output else usual

    def identity(self) -> dict[str, Any]:
        """What decides the numbers in the file; a checkpoint by its content, wherever it lies."""
        keys = ("dataset", "encoder", "arch", "pretrained", "normalize", "size", "dtype")
        content = digest(Path(self.weights), "sha256") if self.weights else None
        return {**{key: getattr(self, key) for key in keys}, "weights_sha256": content}


def parse(arguments: Sequence[str]) -> FeatureSettings:
    """The options with all defaults filled in; the first thing that is wrong is refused."""
    given = {}
    known = [f.name for f in fields(FeatureSettings)]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}=? " if near else ""
            raise UserError(f"{argument}: no such option of features; {hint}there are {', '.join(known)}")
        given[key] = value
    for key, choices in (("dataset", IMAGES), ("encoder", tuple(ARCHS))):
        if key not in given:
            raise UserError(f"{key}= is missing; choose one of {', '.join(choices)}")
    if given["dataset"] not in IMAGES:
        raise UserError(f"dataset={given['dataset']}: no set of images; choose one of {', '.join(IMAGES)}")
    cfg: Any = OmegaConf.merge(OmegaConf.structured(FeatureSettings), given)
    check_limits(cfg, FeatureSettings, "")
    settings: Any = OmegaConf.to_object(cfg)
    return _complete(settings)


def _complete(settings: FeatureSettings) -> FeatureSettings:
    encoder = str(settings.encoder)
    for key, only in ONLY.items():
        if getattr(settings, key) is not None and encoder != only:
            raise UserError(f"{key}={getattr(settings, key)}: only for encoder={only}, not encoder={encoder}")
    settings.arch = settings.arch or ARCHS[encoder][0]
    if encoder == "clip":
        settings.pretrained = settings.pretrained or "openai"
    elif settings.arch not in ARCHS[encoder]:
        raise UserError(f"arch={settings.arch}: encoder={encoder} has {', '.join(ARCHS[encoder])}")
    if encoder == "checkpoint":
        if settings.weights is None:
            raise UserError("weights= is missing: encoder=checkpoint needs a local file")
        settings.weights = str(Path(settings.weights).expanduser())
        if not Path(settings.weights).is_file():
            raise UserError(f"weights={settings.weights}: no such file; name the encoder's checkpoint")
        settings.normalize = settings.normalize or (
            "cifar" if settings.arch == resnext29.ARCH else "imagenet"
        )
    if settings.target.suffix != ".npz":
        raise UserError(f"output={settings.output}: must end with .npz")
    return settings


def option_lines() -> str:
    rows = described(FeatureSettings)
    return "\n".join(f"  {k:<11} {'' if d == 'null' else d.lower():<8} {text}" for k, d, text in rows)


def completions(word: str) -> list[str]:
    """What may follow `fedpriv features` on the command line."""
    words = [f"dataset={name}" for name in IMAGES] + [f"encoder={name}" for name in ARCHS]
    words += [f"{f.name}=" for f in fields(FeatureSettings) if f.name not in ("dataset", "encoder")]
    return [candidate for candidate in words if candidate.startswith(word)]
