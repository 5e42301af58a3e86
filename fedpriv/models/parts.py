"""What the models share: activations, norms, the flattened size of a body, and the composed network."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["relu", "tanh"]
Norm = Literal["none", "batch", "group"]


def activation_layer(name: Activation) -> nn.Module:
    return nn.ReLU() if name == "relu" else nn.Tanh()


def norm_layer(name: Norm, channels: int) -> nn.Module:
    """Nothing, BatchNorm, or GroupNorm with the most groups up to 32 that divide the channels."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(max(g for g in range(1, min(32, channels) + 1) if channels % g == 0), channels)
    return nn.Identity()


def norm_vector(name: Norm, features: int) -> nn.Module:
    """The same for vectors; a group holds at least eight features, for one alone would become zero."""
    if name == "batch":
        return nn.BatchNorm1d(features)
    if name == "group":
        groups = max(g for g in range(1, 33) if g == 1 or (features % g == 0 and features // g >= 8))
        return nn.GroupNorm(groups, features)
    return nn.Identity()


def flat_size(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features the body gives for one sample."""
    was = body.training
    with torch.no_grad():
        features: Tensor = body.eval()(torch.zeros(1, *shape))
    body.train(was)
    return features.numel()


def replace_layers(module: nn.Module, kind: type[nn.Module], make: "type[nn.Module]") -> None:
    """Swap every layer of a kind, in place."""
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, make())
        else:
            replace_layers(child, kind, make)


class Network(nn.Module):
    """What a client runs: its personal transform in front of the model.

    `standard` is a fixed mean and deviation of every feature, for what the transform gives: neither a weight
    nor a statistic, so that it is no part of any upload.
    """

    def __init__(self, transform: nn.Module, model: nn.Module, standard: tuple[Tensor, Tensor] | None = None):
        super().__init__()
        self.transform = transform
        self.model = model
        self.standard = standard

    def forward(self, x: Tensor) -> Tensor:
        x = self.transform(x)
        if self.standard is not None:
            mean, deviation = self.standard
            x = (x - mean.to(x)) / deviation.to(x)
        logits: Tensor = self.model(x)
        return logits


def normalises_batches(network: nn.Module) -> bool:
    """Whether samples of a batch meet in its norm layers."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def mixes_samples(network: nn.Module, shape: tuple[int, ...], vocabulary: int = 0) -> bool:
    """Whether the output for a sample changes with the others in its batch, seen on random samples.

    It is tried in evaluation mode and in training mode, except for batch norms and dropouts, which the
    engines know. Should training be random all the same, both batches begin from one seed.
    """
    network = copy.deepcopy(network).cpu()
    random = torch.Generator().manual_seed(0)
    like = next((p.dtype for p in network.parameters()), torch.float32)

    def samples(count: int) -> Tensor:
        if vocabulary:
            return torch.randint(vocabulary, (count, *shape), generator=random)
        return torch.randn(count, *shape, generator=random).to(like)

    def first(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        out: Tensor = network(x)
        return out.reshape(len(x), -1)[0].nan_to_num()

    def differ(a: Tensor, b: Tensor, share: float) -> bool:
        return a.shape != b.shape or bool((a - b).abs().max() > share * a.abs().max())

    one = samples(1)
    batch, other = (torch.cat([one, samples(3)]) for _ in range(2))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for training in (False, True):
            network.train(training)
            for module in network.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
                    module.eval()
            expected = first(batch)
            drawn = not torch.equal(torch.get_rng_state(), torch.manual_seed(0).get_state())
            if differ(expected, first(other), 1e-6):  # the same kernels: next to no rounding
                return True
            if not drawn and differ(expected, first(one), 1e-4):  # by their number, too, others may count
                return True
    return False
