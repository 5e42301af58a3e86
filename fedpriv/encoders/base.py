"""What every encoder is: a frozen network, and how stored images become what it was trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Encoder:
    network: nn.Module  # [n, 3, size, size] -> [n, d], in evaluation mode
    size: int  # height and width it expects
    mean: tuple[float, ...]  # per channel, after uint8 / 255
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 [n, 1 or 3, H, W] -> float32 [n, 3, size, size], scaled with the encoder's own statistics."""
        x = images.float() / 255
        if x.shape[-2:] != (self.size, self.size):
            x = nn.functional.interpolate(
                x, (self.size, self.size), mode=self.interpolation, antialias=True
            ).clamp(0, 1)  # bicubic overshoots
        mean, std = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return (x.expand(-1, 3, -1, -1) - mean) / std

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(self.prepare(images))
        return features
