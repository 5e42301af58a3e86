"""AlexNet from torchvision with a 1000 -> classes layer on top, as PrivateFL uses it for CH-MNIST."""

from torch import nn

from fedpriv.config.limits import Fraction
from fedpriv.errors import UserError
from fedpriv.models.parts import Activation, Norm, norm_layer, replace_layers
from fedpriv.models.weights import pretrained_state
from fedpriv.vision import tv_models


def alexnet(
    shape: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    norm: Norm = "none",
    dropout: Fraction = 0.5,
    pretrained: bool = False,
) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 63 or shape[0] != 3:
        raise UserError(f"model=alexnet needs RGB images of at least 63x63, the dataset has {shape}")
    network = tv_models.alexnet(dropout=dropout)
    if pretrained:
        network.load_state_dict(pretrained_state(tv_models.AlexNet_Weights.IMAGENET1K_V1))
    if norm != "none":
        layers: list[nn.Module] = []
        for layer in network.features:
            layers += [layer]
            layers += [norm_layer(norm, layer.out_channels)] if isinstance(layer, nn.Conv2d) else []
        network.features = nn.Sequential(*layers)
    if activation == "tanh":
        replace_layers(network, nn.ReLU, nn.Tanh)
    return nn.Sequential(network, nn.Linear(1000, classes))
