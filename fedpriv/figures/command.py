"""`fedpriv figure`: read finished runs, draw one kind of figure, write it and the numbers in it."""

import glob
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from fedpriv.config.composing import expand
from fedpriv.errors import UserError
from fedpriv.figures import (
    accuracy,
    clients,
    emd_accuracy,
    emd_classes,
    emd_epsilon,
    loss,
    noise,
    samples,
    target,
)
from fedpriv.figures.style import Drawn
from fedpriv.files import atomically, write_table
from fedpriv.session.screen import console, errors
from fedpriv.studies import reader
from fedpriv.studies.reader import Result
from fedpriv.studies.selecting import chosen, facts

HELP = """\
usage: fedpriv figure KIND FOLDER ... [out=FILE.png] [by=key,key] [option=value ...]

Draws all finished runs found in and below the folders, and writes the plotted numbers beside the picture.

kinds
  accuracy       accuracy against x=epsilon or any number of the config, x=round, x=seconds or x=uplink (bytes
                 sent), with a band over seeds; by=, facet=KEY (a panel a value), view=global|local,
                 pick=last|best
  clients        accuracies of single clients: who pays for privacy, by group=budget|size|class|none; by=,
                 facet=KEY
  emd-epsilon    EMD between the clients' training losses against epsilon, a line a DP variant and transform;
                 runs with dp=none are the dashed baseline (PrivateFL, Figure 1)
  emd-classes    the same against partition.classes_per_client (Figures 3, 6a, 6c, 8)
  emd-accuracy   accuracy against EMD, joined in the order of epsilon (Figure 7); view=local|global,
                 pick=last|best
  loss           test loss over the rounds, a line a DP variant and transform; by= (Figures 6b, 6d)
  samples        samples before and after each transform, from runs with samples_at (Figure 10)
  target         best accuracy, rounds to a target and speed-up of each algorithm with and without a stage
                 (FedPD, Table 1); target=ACCURACY, else FedAvg's best; view=global|local
  noise          accuracy against the noise on what a stage shares, and its epsilon, a line an algorithm
                 (FedPD, Figure 2b); pick=best|last

options
  out=FILE.png   where to write, or .pdf for print; default: figure-KIND.png in the first folder
  key=value,...  only the runs that agree, such as dp=ldp epsilon=2,8
  by=key,key     a line for each value of these keys of config.yaml, such as by=lr,model.activation

Runs that differ in the seed alone are averaged. Runs that differ in anything else the figure does not show
are refused, so that nothing is averaged or compared by accident: by= shows it, or give fewer folders.

examples
  fedpriv run -m dp=ldp epsilon=2,4,6,8 seed=0,1,2 hydra.sweep.dir=outputs/study
  fedpriv run -m dp=none seed=0,1,2 hydra.sweep.dir=outputs/study
  fedpriv figure accuracy outputs/study
  fedpriv figure accuracy outputs/study x=round facet=epsilon
"""
KINDS: dict[str, Callable[..., Drawn]] = {
    "accuracy": accuracy.draw,
    "clients": clients.draw,
    "emd-epsilon": emd_epsilon.draw,
    "emd-classes": emd_classes.draw,
    "emd-accuracy": emd_accuracy.draw,
    "loss": loss.draw,
    "samples": samples.draw,
    "target": target.draw,
    "noise": noise.draw,
}
_OF_A_RUN = ("metrics", "clients", "partition", "curves", "samples")  # files that a figure must not replace


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    kind, folders, options = _parse(arguments)
    out = Path(options.pop("out", "")) if options.get("out") else _default(kind, folders[0])
    if out.suffix not in (".png", ".pdf"):
        raise UserError(f"out={out}: must end in .png or .pdf")
    if out.stem in _OF_A_RUN and (out.parent / "config.yaml").exists():
        raise UserError(f"out={out}: would replace a file of the run there; choose another name")
    runs, unfinished = reader.find(folders)
    runs = _kept(kind, runs, {name: options.pop(name) for name in list(options) if name not in _own(kind)})
    by = {"by": [expand(k) for k in options.pop("by").split(",") if k]} if "by" in options else {}
    options |= {k: expand(options[k]) for k in ("x", "facet") if k in options}
    drawn = KINDS[kind](runs, **options, **by)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stamp = "Software" if out.suffix == ".png" else "CreationDate"
        with atomically(out) as file:  # the same runs give the same bytes
            drawn.figure.savefig(file, format=out.suffix[1:], metadata={stamp: None})
        write_table(out.with_suffix(".csv"), [drawn.rows[0], *(row.values() for row in drawn.rows)])
    except OSError as problem:
        raise UserError(f"out={out}: cannot be written ({problem.strerror}); choose another") from problem
    if unfinished:
        errors.print(f"warning: {unfinished} unfinished runs left out", soft_wrap=True)
    console.print(f"{out} and {out.with_suffix('.csv').name}, from {len(runs)} runs", soft_wrap=True)
    return 0


def _parse(arguments: list[str]) -> tuple[str, list[Path], dict[str, str]]:
    kind, *rest = arguments or [""]
    if kind not in KINDS:
        raise UserError(f"figure {kind}: choose a kind of {', '.join(KINDS)}; `fedpriv figure --help`")
    folders = [Path(a) for a in rest if not re.match(r"[\w.]+=", a) or Path(a).is_dir()]
    options = dict(a.split("=", 1) for a in rest if Path(a) not in folders)
    if not folders:
        raise UserError(f"figure {kind}: name the folders to look for runs in, such as outputs/runs")
    return kind, folders, options


def _own(kind: str) -> list[str]:
    """The options of a kind; any other word is a key to choose runs by."""
    parameters = inspect.signature(KINDS[kind]).parameters.items()
    return ["out", *(name for name, p in parameters if p.kind == p.KEYWORD_ONLY)]


def _kept(kind: str, runs: list[Result], filters: dict[str, str]) -> list[Result]:
    known = {name for run in runs for name in facts(run)}
    for name, value in filters.items():
        if expand(name) not in known:
            raise UserError(
                f"{name}={value}: no such option of figure {kind}, which has {', '.join(_own(kind))}; nor "
                "is it a key of the runs"
            )
    kept = chosen(runs, {expand(name): value for name, value in filters.items()})
    if not kept:
        raise UserError(f"{' '.join(f'{k}={v}' for k, v in filters.items())}: no finished run agrees")
    return kept


def _default(kind: str, folder: Path) -> Path:
    """In the folder, or beside it if it is itself a run's."""
    return (folder.parent if (folder / "config.yaml").exists() else folder) / f"figure-{kind}.png"


def complete(words: list[str]) -> str:
    """For tab completion, the last of `fedpriv figure ...`: kinds, then options and folders."""
    if len(words) == 3:
        return " ".join(KINDS)
    options = ["out=", "by=", "x=", "facet=", "group=", "view=", "pick=", "target="]
    return " ".join([*options, *sorted(glob.glob(f"{words[-1]}*/"))])
