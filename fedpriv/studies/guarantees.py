"""What has to be said where epsilons of several runs stand together: whom they protect, what is proved."""

from collections.abc import Sequence

from fedpriv.files import read_json
from fedpriv.studies.reader import Result


def remarks(runs: Sequence[Result]) -> list[str]:
    """Of runs whose privacy.json is there: different units, and epsilons that are claimed and not proved."""
    units: dict[str, dict[str, None]] = {}
    claimed: dict[str, dict[str, None]] = {}
    for run in runs:
        path = run.folder / "privacy.json"
        if not run.private or not path.exists():
            continue
        told, variant = read_json(path), str(run.values["dp_variant"])
        units.setdefault(str(told.get("unit")), {})[variant] = None
        if not told.get("claim_holds", True):
            most = told.get("epsilon_provable_max")
            text = "none" if most is None else f"{most:.3g}" if most < 100 else f"{most:,.0f}"
            claimed.setdefault(variant, {})[text] = None
    found = []
    if len(units) > 1:
        whom = ", ".join(f"one {unit} ({', '.join(names)})" for unit, names in units.items())
        found.append(f"epsilon protects {whom}, which is not the same protection")
    for variant, proved in claimed.items():
        found.append(f"the epsilon of {variant} is claimed and not proved; provable: {', '.join(proved)}")
    return found
