"""CLIP's image encoder from open_clip, if that is installed (Radford et al., ICML 2021).

The features are the projected image embeddings as they are, not scaled to length one.
"""

from typing import Any

from torch import Tensor, nn

from fedpriv.datasets.download import one_line
from fedpriv.encoders.base import Encoder
from fedpriv.errors import UserError


class Images(nn.Module):
    """The image half of a CLIP model."""

    model: Any

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.model.encode_image(x)
        return features


def clip(arch: str, pretrained: str, size: int | None) -> Encoder:
    try:
        import open_clip
    except ImportError:
        raise UserError(
            "encoder=clip needs open_clip, which is not installed; pip install open_clip_torch"
        ) from None
    tags: dict[str, list[str]] = {}
    for name, tag in open_clip.list_pretrained():
        tags.setdefault(name, []).append(tag)
    if arch not in tags:
        raise UserError(f"arch={arch}: open_clip has no such model; choose one of {', '.join(tags)}")
    if pretrained not in tags[arch]:
        raise UserError(f"pretrained={pretrained}: {arch} has weights called {', '.join(tags[arch])}")
    try:
        # OpenAI trained with a quicker GELU; without it their weights load and give other features.
        model = open_clip.create_model(
            arch, pretrained, force_quick_gelu=pretrained == "openai", force_image_size=size
        )
        own = model.visual.preprocess_cfg
    except Exception as problem:  # its downloads raise nearly anything; before 2.24 it has no preprocess_cfg
        raise UserError(
            f"encoder=clip: cannot load {arch} with weights {pretrained} ({one_line(problem)}); it needs "
            "network access once, and open_clip_torch 2.24 or later"
        ) from problem
    side = own["size"] if isinstance(own["size"], int) else own["size"][0]
    return Encoder(Images(model).eval(), side, tuple(own["mean"]), tuple(own["std"]), own["interpolation"])
