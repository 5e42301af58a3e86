"""PrivateFL's convolutional transform: a personal 7x7 kernel in front of the model (section 4.1, Table 1)."""

from typing import Annotated

from torch import nn

from fedpriv.config.limits import Positive, Within
from fedpriv.errors import UserError
from fedpriv.transforms.elementwise import Elementwise


def convolution(
    shape: tuple[int, ...],
    *,
    kernel: Annotated[int, Within(least=1, most=255)] = 7,
    lr: Positive | None = None,
) -> nn.Module:
    """Starts as the identity: one at the centre of each channel's own kernel, zero elsewhere."""
    if len(shape) != 3:
        raise UserError(f"transform=conv2d needs images, the dataset has samples of shape {shape}")
    if kernel % 2 == 0:
        raise UserError(f"transform.kernel={kernel}: must be odd, so that an image keeps its size")
    layer = nn.Conv2d(shape[0], shape[0], kernel, padding=kernel // 2)
    nn.init.dirac_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return Elementwise([layer], lr)
