"""Datasets by name. Each class reads official files from a data folder; heavy imports wait until then."""

from fedpriv.datasets.base import Data, Dataset, default_data_dir
from fedpriv.datasets.chmnist import CHMNIST
from fedpriv.datasets.covtype import Covtype
from fedpriv.datasets.digits import Digits
from fedpriv.datasets.features import Features
from fedpriv.datasets.imdb import IMDB
from fedpriv.datasets.mnist_sets import EMNIST, MNIST, FashionMNIST
from fedpriv.datasets.purchase100 import Purchase100
from fedpriv.datasets.vision_sets import CIFAR10, CIFAR100, SVHN

DATASETS: dict[str, type[Dataset]] = {
    kind.name: kind
    for kind in (
        Digits,
        MNIST,
        FashionMNIST,
        EMNIST,
        CIFAR10,
        CIFAR100,
        SVHN,
        Covtype,
        CHMNIST,
        Purchase100,
        IMDB,
        Features,
    )
}

__all__ = ["DATASETS", "Data", "Dataset", "default_data_dir"]
