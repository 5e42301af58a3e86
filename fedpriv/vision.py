"""The one door to torchvision: its `datasets` and `models`, importable beside a CPU-only torch as well.

torchvision's ordinary wheel carries a C extension linked against CUDA. Beside a CPU-only torch the extension
does not load, so the operators `nms` and `qnms` stay undefined, and the import stops when torchvision
attaches shape functions to them. Neither operator is used here: declaring their schemas is enough to go on.
An installation that imports as it is stays untouched.
"""

import importlib
import sys
from types import ModuleType

import torch

# A Library withdraws its definitions when it is collected, hence the module-level name.
_schemas: torch.library.Library | None = None


def _declare_missing_operators() -> None:
    global _schemas
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _import_torchvision() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error) or "does not exist" not in str(error):
            raise
    _declare_missing_operators()
    # The first attempt leaves submodules behind that refer to a half-built package.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


_torchvision = _import_torchvision()

tv_datasets = _torchvision.datasets
tv_models = _torchvision.models

__all__ = ["tv_datasets", "tv_models"]
