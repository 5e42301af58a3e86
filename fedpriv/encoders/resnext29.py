"""ResNeXt-29 for 32x32 images (Xie et al., CVPR 2017, section 5.3): PrivateFL's encoder from CIFAR-100.

PrivateFL and Tramer and Boneh call it 8x4 after two arguments, 8 groups and a widening of 4 (a block's output
over its planes); by the width of a group in the first stage it is elsewhere called 8x64d. A 3x3 stem, three
stages of three bottlenecks, 1024 features. The weights both papers use (W. Yang, pytorch-classification) have
layer names of their own, which `rename` translates.
"""

import re

from torch import nn

ARCH = "resnext29_8x4d"
NAMES = {
    "conv_1_3x3": "conv1",
    "bn_1": "bn1",
    "conv_reduce": "conv1",
    "bn_reduce": "bn1",
    "conv_conv": "conv2",
    "bn": "bn2",
    "conv_expand": "conv3",
    "bn_expand": "bn3",
    "shortcut": "downsample",
    "shortcut_conv": "0",
    "shortcut_bn": "1",
}


def resnext29() -> nn.Module:
    from fedpriv.vision import tv_models  # here, as it takes seconds and help needs none of it

    network: nn.Module = tv_models.resnet.ResNet(
        tv_models.resnet.Bottleneck, [3, 3, 3, 1], groups=8, width_per_group=64
    )
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = network.layer4 = network.fc = nn.Identity()
    return network


def rename(name: str) -> str:
    """stage_2.stage_2_bottleneck_0.conv_reduce.weight -> layer2.0.conv1.weight"""
    parts = [NAMES.get(part, part) for part in name.split(".")]
    parts = [re.sub(r"^stage_(\d)$", r"layer\1", part) for part in parts]
    return ".".join(re.sub(r"^stage_\d_bottleneck_(\d)$", r"\1", part) for part in parts)
