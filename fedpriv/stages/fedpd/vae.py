"""FedPD's distiller G, a beta-VAE (Higgins et al. 2017): x_s = G(x), and x_g = x - x_s is what may be shared.

Two 4x4 convolutions of stride 2 to 16 and 32 channels, two residual blocks, a dense latent; the decoder is
the mirror image. The last layer squeezes into the public range of the inputs, so x_g lies in a box twice as
wide whatever the weights are: its sensitivity needs no clipping to be finite.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32)


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.outer = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.outer(F.relu(self.inner(F.relu(x))))
        return x + change


class Distiller(nn.Module):
    low: Tensor  # [c, 1, 1] the public range of inputs
    high: Tensor

    def __init__(self, shape: tuple[int, ...], low: Tensor, high: Tensor, latent: int):
        super().__init__()
        channels, self.height, self.width = shape
        first, second = WIDTHS
        self.grid = (second, -(-self.height // 4), -(-self.width // 4))  # other sizes are padded to these
        flat = self.grid[0] * self.grid[1] * self.grid[2]
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, first, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 4, stride=2, padding=1),
            Block(second),
            Block(second),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.mean, self.log_variance = nn.Linear(flat, latent), nn.Linear(flat, latent)
        self.spread = nn.Linear(latent, flat)
        self.decoder = nn.Sequential(
            Block(second),
            Block(second),
            nn.ReLU(),
            nn.ConvTranspose2d(second, first, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(first, channels, 4, stride=2, padding=1),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance of the latent, [B, latent] each."""
        _, rows, columns = self.grid
        seen = self.encoder(F.pad(x, (0, 4 * columns - self.width, 0, 4 * rows - self.height)))
        return self.mean(seen), self.log_variance(seen).clamp(-10, 10)

    def decode(self, z: Tensor) -> Tensor:
        out = self.decoder(self.spread(z).view(-1, *self.grid))[:, :, : self.height, : self.width]
        return self.low + (self.high - self.low) * torch.sigmoid(out)

    def forward(self, x: Tensor) -> Tensor:
        """x_s with the latent at its mean: what is released must add no randomness that nobody accounts."""
        return self.decode(self.encode(x)[0])


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL of the latent to a standard normal, summed over it, mean of the batch."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
