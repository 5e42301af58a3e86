"""Ways to scale pixels: named pairs of channel means and deviations, applied after division by 255."""

from typing import Literal, TypedDict

Gray = Literal["half", "unit"]
Colour = Literal["half", "unit", "imagenet"]


class Scaling(TypedDict):
    """The two fields of `Data` that a choice sets."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


SCALINGS: dict[str, Scaling] = {
    "half": {"mean": (0.5,), "std": (0.5,)},  # into [-1, 1]
    "unit": {"mean": (0.0,), "std": (1.0,)},  # into [0, 1]
    "imagenet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},  # for pretrained models
}
