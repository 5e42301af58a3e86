"""Opacus's Renyi maths alone: imported by its name it brings all of Opacus, which costs as much as torch."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

# The orders of Opacus's accountants.
ALPHAS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))


def _maths() -> Any:
    package = find_spec("opacus")
    assert package is not None and package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "accountants", "analysis", "rdp.py")
    spec = spec_from_file_location(f"{__name__}.opacus", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_opacus = _maths()
compute_rdp, get_privacy_spent = _opacus.compute_rdp, _opacus.get_privacy_spent
