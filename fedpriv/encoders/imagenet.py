"""torchvision's ResNet and ResNeXt with ImageNet weights, their classifier taken off.

ResNeXt: Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017.
"""

from torch import nn

from fedpriv.encoders.base import Encoder
from fedpriv.models.weights import pretrained_state

RESNETS = ("resnet18", "resnet50")
RESNEXTS = ("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d")


def headless(arch: str) -> nn.Module:
    """torchvision's network of that name, its pooled features as output."""
    from fedpriv.vision import tv_models  # here, as it takes seconds and help needs none of it

    network: nn.Module = tv_models.get_model(arch)
    network.fc = nn.Identity()
    return network


def imagenet(kind: str, arch: str, size: int | None) -> Encoder:
    from fedpriv.vision import tv_models

    weights = tv_models.get_model_weights(arch).IMAGENET1K_V1
    state = pretrained_state(
        weights, asked=f"encoder={kind}", otherwise="use encoder=checkpoint with a file of your own"
    )
    network = headless(arch)
    network.load_state_dict({name: value for name, value in state.items() if not name.startswith("fc.")})
    own = weights.transforms()
    return Encoder(network.eval(), size or own.crop_size[0], tuple(own.mean), tuple(own.std))
