"""`fedpriv audit`: measure what the ledger promises."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.table import Table

from fedpriv.audit import figure, inversion, mechanism, membership, one_run, one_shot, sensitivity
from fedpriv.audit.finding import Finding, Result
from fedpriv.audit.taps import Bench
from fedpriv.building import build
from fedpriv.config import identity
from fedpriv.config.composing import Planned, plan, without_config_dir
from fedpriv.config.identity import Identity
from fedpriv.errors import UserError
from fedpriv.files import alone, json_text, make_folder, read_json, write_atomically
from fedpriv.session import checkpoint
from fedpriv.session.claim import IDENTITY
from fedpriv.session.execution import execute
from fedpriv.session.screen import console, errors, number

KINDS = ("sensitivity", "one-run", "one-shot", "mechanism", "membership", "inversion")
FILE, PICTURE, IMAGES = "audit.json", "audit.png", "audit_images.png"
MEANING = (
    "A bound above the provable epsilon proves that the promise is broken. A bound below it does NOT prove "
    "that the promise holds: another attack, more canaries or other data might show more."
)
HELP = """\
usage: fedpriv audit [KIND ...] [group=option ...] [key=value ...] [--view V] [--canaries N] [--draws N]

Attacks the run that `fedpriv run` would make of the same words, and sets what is measured beside the provable
epsilon. Exit code 1: something is larger than promised.

kinds (default: all that have a meaning for the run)
  sensitivity   noise off, one sample or client taken out: is the move no more than the noise is for? Is
                the noise fresh, are clients and samples drawn as charged, is every release paid for?
  one-run       canaries in or out by a coin: a lower bound on epsilon at 95 % (Steinke et al. 2023)
  one-shot      canary clients: an estimate, not a bound (Andrew et al. 2023)
  mechanism     one round under many keys: a bound on the epsilon of a round (Clopper-Pearson)
  membership    who trained the finished model, by loss: ROC curve; runs the run first if it is not done
  inversion     rebuild an image from what one client releases, with noise and without

options
  --view V      one-run: who looks, the server that sees uploads (default) or those who see the models
  --canaries N  one-run and one-shot (default 2000 samples, 200 clients)
  --draws N     mechanism: keys (default 2000 steps, 200 rounds)
  --choices N   sensitivity: samples or clients taken out (default 24)

Writes audit.json, audit.png and audit_images.png into the run's folder. What is there of the same audit is
not done again (resume=false: it is).
"""


@dataclass(frozen=True)
class Options:
    view: str = "server"
    canaries: int | None = None
    draws: int | None = None
    choices: int = 24


def parse(arguments: list[str]) -> tuple[tuple[str, ...], Options, list[str]]:
    """Kinds, this command's own options, and the rest: those of a run."""
    kinds: list[str] = []
    own: dict[str, Any] = {}
    rest: list[str] = []
    names = {f.name for f in fields(Options)}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in names:
            own[name] = value if equals else next(words, "")
        elif "=" not in word and not word.startswith("-"):
            if word not in KINDS:
                raise UserError(f"audit {word}: no such kind; choose of {', '.join(KINDS)}")
            kinds.append(word)
        elif word.startswith("-"):
            raise UserError(f"audit {word}: no such option; `fedpriv audit --help` lists them")
        else:
            rest.append(word)
    if own.get("view", "server") not in ("server", "models"):
        raise UserError(f"--view {own['view']}: choose server or models")
    for name in own.keys() - {"view"}:
        if not own[name].isdigit() or int(own[name]) < 1:
            raise UserError(f"--{name} {own[name]}: must be a whole number of at least 1")
        own[name] = int(own[name])
    return tuple(dict.fromkeys(kinds)), Options(**own), rest


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    words, own_options = without_config_dir(arguments)
    kinds, options, rest = parse(words)
    planned = plan(rest, own_options)
    results = audit(planned, kinds, options)
    return 1 if any(r.violated for r in results) else 0


def audit(planned: Planned, kinds: tuple[str, ...], options: Options) -> list[Result]:
    """Every kind asked for, from the folder where it is done already."""
    cfg, folder = planned.config, planned.folder
    _same_run(cfg, folder)
    for name, given, least in (
        ("canaries", options.canaries, one_run.LEAST),
        ("draws", options.draws, mechanism.LEAST),
    ):
        if given is not None and given < least:
            raise UserError(f"--{name} {given}: too few for any bound; ask for {least} or more")
    bench: list[Bench] = []

    def ready() -> Bench:
        if not bench:
            bench.append(Bench(cfg))
            for warning in bench[0].run.warnings:
                errors.print(f"warning: {warning}", soft_wrap=True)
        return bench[0]

    wanted = kinds or _default(ready())
    make_folder(folder)
    kept = _kept(cfg, folder, options)
    if "membership" in wanted and "membership" not in kept:
        console.print("the run itself:")
        execute(cfg, folder, planned.title)
    pictures: dict[str, list[np.ndarray]] = {}
    with alone(folder):
        for kind in wanted:
            if kind in kept:
                console.print(f"{kind}: already done; resume=false audits again")
                continue
            began = time.perf_counter()
            kept |= {
                r.kind: replace(r, seconds=time.perf_counter() - began)
                for r in _one(kind, cfg, folder, ready, options, pictures)
            }
            _write(cfg, folder, options, planned.title, kept)
        results = [r for name, r in kept.items() if name.split(" ")[0] in wanted]
        figure.draw(list(kept.values()), planned.title, folder / PICTURE)
        if pictures:
            figure.draw_images(pictures, folder / IMAGES)
    show(results, folder, planned.title)
    return results


def _default(bench: Bench) -> tuple[str, ...]:
    """All kinds that have a meaning, told by the unit: unit none has only attacks on the model."""
    if bench.unit == "none":
        return ("sensitivity", "membership", "inversion")
    return tuple(k for k in KINDS if k != "one-shot" or bench.unit == "client")


def _one(
    kind: str,
    cfg: DictConfig,
    folder: Path,
    ready: Callable[[], Bench],
    options: Options,
    pictures: dict[str, list[np.ndarray]],
) -> list[Result]:
    if kind == "membership":
        return [_membership(cfg, folder)]
    bench = ready()
    client = bench.unit == "client"
    if kind == "sensitivity":
        return [sensitivity.audit(bench, options.choices)]
    if kind == "one-run":
        return [one_run.audit(bench, options.canaries or (200 if client else 2000), options.view)]
    if kind == "one-shot":
        return [one_shot.audit(bench, options.canaries or 200)]
    if kind == "mechanism":
        return [mechanism.audit(bench, options.draws or (200 if client else 2000))]
    result, found = inversion.audit(bench)
    pictures |= found
    own = inversion.of_fedpd(bench)
    if own is None:
        return [result]
    pictures |= {f"FedPD {name}": rows for name, rows in own[1].items()}
    return [result, own[0]]


def _membership(cfg: DictConfig, folder: Path) -> Result:
    """On the finished model, from its checkpoint."""
    run = build(cfg, secret=lambda: bytes(32), prepare=False)
    state, _ = checkpoint.load(folder)
    if state is None:
        raise UserError(f"{folder}: has no sound checkpoint; use resume=false to run again")
    run.trainer.load(state)
    summary = read_json(folder / "summary.json")
    accuracy = max(summary["accuracy_global_last"] or 0.0, summary["accuracy_local_last"] or 0.0)
    return membership.audit(run.trainer, accuracy, run.data.classes)


# -- what is kept in the folder


def _same_run(cfg: DictConfig, folder: Path) -> None:
    marker = folder / IDENTITY
    if marker.exists() and Identity.read(marker.read_text()).config != identity.of_config(cfg) and cfg.resume:
        raise UserError(
            f"hydra.run.dir={folder} holds a run with another config; choose another folder, or audit "
            "with the words of that run"
        )


def _stamp(cfg: DictConfig, options: Options) -> dict[str, Any]:
    return {"identity": identity.of_config(cfg), "code": identity.code(), "options": vars(options)}


def _kept(cfg: DictConfig, folder: Path, options: Options) -> dict[str, Result]:
    """What this audit has done already, by kind."""
    if not cfg.resume or not (folder / FILE).exists():
        return {}
    content = read_json(folder / FILE)
    if content.get("stamp") != _stamp(cfg, options):
        return {}
    known = {f.name for f in fields(Result)}
    found = {}
    for kind, saved in content["results"].items():
        values = {k: v for k, v in saved.items() if k in known}
        values["findings"] = tuple(Finding(**f) for f in saved["findings"])
        found[kind] = Result(**values)
    return found


def _write(cfg: DictConfig, folder: Path, options: Options, title: str, kept: dict[str, Result]) -> None:
    content = {
        "title": title,
        "violated": any(r.violated for r in kept.values()),
        "meaning": MEANING,
        "stamp": _stamp(cfg, options),
        "results": {kind: result.report() for kind, result in kept.items()},
    }
    write_atomically(folder / FILE, json_text(content).encode())


# -- the screen


def show(results: list[Result], folder: Path, title: str) -> None:
    table = Table(title=f"audit of {title}", title_justify="left")
    for column, side in (
        ("audit", "left"),
        ("measured", "right"),
        ("provable", "right"),
        ("verdict", "left"),
    ):
        table.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what was seen")
    for r in results:
        measured = "-" if r.bound is None else f"{'about' if not r.is_bound else 'at least'} {r.bound:.2f}"
        table.add_row(r.kind, measured, "-" if r.bound is None else number(r.against), verdict(r), r.says)
    console.print(table)
    for r in results:
        for f in r.findings:
            if f.verdict == "VIOLATED":
                console.print(f"VIOLATED  {r.kind}, {f.check}: {f.text}", soft_wrap=True)
        if r.is_bound and r.bound is not None and r.claimed is not None and r.bound > r.claimed:
            text = f"the method claims epsilon {number(r.claimed)}, and {r.bound:.2f} was measured"
            console.print(f"refuted   {r.kind}: {text}", soft_wrap=True)
    console.print(f"meaning   {MEANING}", soft_wrap=True)
    console.print(f"results   {folder}: {FILE}, {PICTURE}", soft_wrap=True)


def verdict(result: Result) -> str:
    if result.violated:
        return "VIOLATED"
    if result.bound is None:
        return "passed" if result.findings and any(f.verdict == "passed" for f in result.findings) else "-"
    if result.against is None:
        return "nothing promised"
    if not result.is_bound:
        return "an estimate"
    return "not refuted"
