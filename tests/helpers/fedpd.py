"""A small distillation."""

from functools import partial

import torch
from torch import nn

from fedpriv.randomness.source import Source
from fedpriv.stages.fedpd.losses import Distillation
from fedpriv.stages.fedpd.noise import Noise
from fedpriv.stages.fedpd.protection import Open, setting_of
from fedpriv.stages.fedpd.vae import Distiller
from tests.helpers.settings import setting


def a_recipe(**options):
    """With weights that tell its terms apart."""
    return Distillation(
        **{
            "view": "generalisation",
            "entropy": "mse",
            "noise": Noise("gaussian", 0.0),
            "rounds": 1,
            "sample_rate": 1.0,
            "local_epochs": 1,
            "batch_size": 2,
            "lr": 0.1,
            "data_fraction": 1.0,
            "mixup": 0.0,
            "weight_entropy": 5.0,
            "weight_features": 2.0,
            "weight_raw": 0.4,
            "weight_kl": 0.7,
            "weight_distance": 3.0,
            **options,
        }
    )


recipe = partial(a_recipe, view="optimisation", noise=Noise("gaussian", 0.1), rounds=3, batch_size=4, lr=0.01)


def networks():
    torch.manual_seed(0)
    low = torch.full((1, 1, 1), -1.0)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3))
    return Distiller((1, 8, 8), low, -low, 4).double(), classifier.double()


def distilling(kind, options, sizes, clip=1.0, epsilon=8.0, source=None, both=None):
    """A protection of the given kind for clients of these sizes."""
    training = setting(clients=len(sizes), epsilon=epsilon)
    own = setting_of(options, sizes, both or networks(), training)
    return kind(options, own, source or Source(bytes(32)), *([clip] if kind is not Open else []))
