"""Data sets. The files in conf/dataset say which there are; heavy imports wait until one is read."""

from fedpriv.datasets.base import Data, Dataset, default_data_dir

__all__ = ["Data", "Dataset", "default_data_dir"]
