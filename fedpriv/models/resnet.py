"""ResNet-18 from torchvision, with a 3x3 stem for small images or ImageNet weights (PrivateFL, FedPD)."""

from functools import partial
from typing import Annotated, Literal

from torch import Tensor, nn

from fedpriv.config.limits import Within
from fedpriv.errors import UserError
from fedpriv.models.parts import Activation, Norm, norm_layer, replace_layers
from fedpriv.models.weights import pretrained_state
from fedpriv.vision import tv_models


class Block(tv_models.resnet.BasicBlock):
    """torchvision's block with the sum not done in place, which per-sample gradients do not allow."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return out


def resnet18(
    shape: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    norm: Norm = "group",
    stem: Literal["3x3", "imagenet"] = "3x3",
    pretrained: bool = False,
    resize: Annotated[int, Within(least=1, most=1024)] | None = None,
) -> nn.Module:
    if len(shape) != 3:
        raise UserError(f"model=resnet18 needs images, the dataset has samples of shape {shape}")
    if pretrained and (stem != "imagenet" or shape[0] != 3):
        raise UserError("model.pretrained=true needs model.stem=imagenet and a dataset of RGB images")
    network = tv_models.resnet.ResNet(Block, [2, 2, 2, 2], norm_layer=partial(norm_layer, norm))
    if pretrained:
        # Norm layers of another kind cannot take the BatchNorm weights; everything else can.
        state = pretrained_state(tv_models.ResNet18_Weights.IMAGENET1K_V1)
        own = network.state_dict()
        network.load_state_dict({k: v for k, v in state.items() if k in own}, strict=False)
    if stem == "3x3":
        network.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif shape[0] != 3:
        network.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    network.fc = nn.Linear(network.fc.in_features, classes)
    if activation == "tanh":
        replace_layers(network, nn.ReLU, nn.Tanh)
    return nn.Sequential(nn.Upsample((resize, resize), mode="bilinear"), network) if resize else network
