"""The table conf/paper/field/table1 with learning rates chosen on held-out data: `make field`.

For every cell a search by Optuna (fedpriv/privacy/README.md) over lr, and over server.lr where the server has
one, on a tenth of the clients' training samples and a seed that the table does not use. What it chose goes
into a recipe of its own, outputs/field/table1.yaml, and what the searches cost into search.csv beside it.
Searches that were stopped continue; cells that are done are not searched again.

  python scripts/field.py [--trials 8] [--only method=cdp,data=mnist] [--smoke]
  fedpriv reproduce outputs/field/table1.yaml && fedpriv table outputs/field/table1.yaml
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import yaml

from fedpriv.reproduce.recipe import Cell, load

NAME, SEED = "field/table1", 1000
FOLDER = Path("outputs") / "field"
SMOKE = (
    "dataset=digits",
    "clients=10",
    "rounds=4",
    "local_steps=1",
    "partition.min_samples=1",
    "sample_rate=0.5",
)
COLUMNS = ("best", "score", "trials", "epsilon_one_run", "epsilon_search", "delta", "search_is")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--only", default="", help="axis=value,...")
    parser.add_argument("--smoke", action="store_true", help="two cells on digits, two trials each")
    told = parser.parse_args()
    only = {axis: (value,) for axis, _, value in (o.partition("=") for o in told.only.split(",") if o)}
    recipe = load(NAME)
    cells = recipe.cells("full", only)
    if told.smoke:
        cells = [c for c in cells if c.facts["method"] in ("ldp", "cdp+adam") and c.facts["data"] == "mnist"][
            ::2
        ]
    found = []
    for number, cell in enumerate(cells):
        print(f"{number + 1} of {len(cells)}: {cell}", flush=True)
        found.append((cell, searched(cell, 2 if told.smoke else told.trials, SMOKE if told.smoke else ())))
    write(found)
    print(f"wrote {FOLDER / 'table1.yaml'} and {FOLDER / 'search.csv'}")
    return 0


def searched(cell: Cell, trials: int, more: tuple[str, ...]) -> dict:
    """What the search for one cell came to."""
    folder = FOLDER / "_".join(cell.facts.values())
    if (known := _report(folder)) and known["trials"] >= trials:
        return known
    space = ["lr=tag(log,interval(0.003,3))"]
    server = next((o for o in cell.overrides if o.startswith("server=")), "server=sgd")
    if server != "server=sgd":
        space.append("server.lr=tag(log,interval(0.001,1))")
    overrides = [o for o in cell.overrides if not o.startswith("lr=")]
    command = [
        sys.executable, "-m", "fedpriv", "run", "-m", "hydra/sweeper=optuna",
        f"hydra.sweeper.n_trials={trials}", f"hydra.sweep.dir={folder}",
        "validation=0.1", f"seed={SEED}", *overrides, *more, *space,
    ]  # fmt: skip
    log = folder / "search.log"
    folder.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT)
    if (known := _report(folder)) is None:
        raise SystemExit(f"{cell}: the search failed ({done.returncode}); see {log}")
    return known


def _report(folder: Path) -> dict | None:
    """What the last search in a folder came to, if one ended there."""
    reports = sorted(folder.glob("search-*.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(reports[-1].read_text()) if reports else None


def write(found: list[tuple[Cell, dict]]) -> None:
    """The recipe with what was chosen, and the price of choosing."""
    from importlib.resources import files

    content = yaml.safe_load(files("fedpriv.conf").joinpath("paper", f"{NAME}.yaml").read_text())
    for cell, result in found:
        chosen = " ".join(f"{key}={value:.4g}" for key, value in result["best"][0]["params"].items())
        content.setdefault("when", []).append([cell.facts, chosen])
    (FOLDER / "table1.yaml").write_text(yaml.safe_dump(content, sort_keys=False, width=110))
    with open(FOLDER / "search.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow((*(found[0][0].facts if found else ()), *COLUMNS))
        for cell, result in found:
            best = result["best"][0]
            values = {**result, "best": best["params"], "score": best["values"][0]}
            table.writerow((*cell.facts.values(), *(values[name] for name in COLUMNS)))


if __name__ == "__main__":
    sys.exit(main())
