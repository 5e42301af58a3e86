"""Hostile configurations: each is either run or refused in one line, soon. `python scripts/fuzz.py 2000`.

A configuration is one, two or three values no careful user would write, on top of a run of a second. It is
composed, checked and built as `fedpriv run` does it; of those that are accepted, a sample is trained for two
rounds and its files are read. Counted is what must not be:

tracebacks  an error that is not one line of ours, or the death of the process
nonsense    a line that says nothing, or a result that is none: no number, no round, no word of divergence
slow        more than 20 seconds of work
"""

import argparse
import contextlib
import io
import json
import math
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SLOW = 20  # seconds of work, for other work on the machine is not ours; of waiting, six times that
STUCK = 300  # seconds without a word, then the worker is ended
MEMORY = 12 * 2**30  # bytes of address space a worker may ask for
SAMPLE = 0.5  # of the accepted ones are trained
COUNTS = ("tried", "accepted", "refused", "tracebacks", "nonsense", "slow")

NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "0.5", "-0.5", "1e-300", "1e-45", "1e-9", "1e9", "1e20", "1e38",
    "1e39", "1e300", "-1e300", "nan", "inf", "-inf", "1e-3", "0.999999999", "1.0000001", "1e6", "1e12",
    "1e-4", "1e-30", "0.01", "0.1", "0.9", "5", "100",
)  # fmt: skip
WHOLE = (
    "0", "-1", "1", "2", "3", "5", "7", "10", "30", "100", "1000", "65536", "100000", "1000000",
    "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 30,
    "1" + "0" * 320, "-2147483649", "1" + "0" * 5000,
)  # fmt: skip
TEXTS = (
    "null", "true", "false", "abc", "''", "' '", "'[/x]'", "'[bold]'", "'[/'", "'a]b['", "'\\n'", "é",
    "'日本'", "'../..'", "/dev/null", "/proc/self/mem", "/", "a" * 300, "b" * 5000, "'%s%n'", "'{0}'",
    "'a b'", "'None'", "'a\\tb'", "-", "'--help'", "'$(x)'", "1_000", "0x10", "1e", "'1'", "yes",
)  # fmt: skip
SHAPES = (
    "[]", "[[]]", "[1]", "[a]", "[null]", "[1,[2]]", "{}", "{a:1}", "{a:{b:[1]}}", "[nan]", "[1e300]",
    "[0]", "[-1]", "[2147483648]", "[1e9]", "[0.5,0.5]", "[1,2,3,4]", "[true]", "[{}]", "[100000000]",
    "[1,1]", "[65536]", "[" + ",".join("1" * 200) + "]", "{_target_:builtins.print}",
    "{_target_:os.getcwd}", "{_target_:no.such.Thing}", "{_target_:[]}", "{_target_:1}",
    "{_target_:fedpriv}", "{_target_:fedpriv.config}", "{_target_:fedpriv.rounds.trainer.Trainer}",
)  # fmt: skip
INTERPOLATIONS = (
    "${settings_help:}", "${run_name:}", "${clients}", "${lr}", "${nowhere}", "${model}",
    "${oc.env:HOME}", "${oc.env:NOT_SET_ANYWHERE}", "${hydra:help.template}", "${hydra.help.header}",
    "${seed", "${}", "${oc.select:x}", "${settings_help:1}", "x${settings_help:}x", "${oc.decode:'['}",
    "${oc.create:{a:1}}", "${budget}", "${.}",
)  # fmt: skip
SMALL = {
    "model.sizes": "[8]", "clients": "4", "rounds": "2", "batch_size": "64", "threads": "1",
    "data_dir": "data",
    "stage.rounds": "1", "stage.latent": "4", "stage.cache": "false", "dataset.download": "false",
    "logger.mode": "disabled",
}  # fmt: skip


# -- what is tried


def configuration(number: int) -> list[str]:
    """The overrides of one hostile configuration; the same for the same number."""
    from fedpriv.config.catalogue import contents
    from fedpriv.config.schema import GROUPS, described

    chance = random.Random(number)
    chosen = dict(USUAL)
    for group in chance.sample(GROUPS, chance.choice((0, 0, 1, 1, 2))):
        chosen[group] = chance.choice(list(contents(group)))
    values: dict[str, Any] = {key: default for key, default, _ in described()}
    for group, option in chosen.items():
        values |= {f"{group}.{k}": v for k, v in contents(group)[option].items() if k != "_target_"}
    small = {key: value for key, value in SMALL.items() if key in values}
    given = [f"{group}={option}" for group, option in chosen.items() if option != USUAL[group]]
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        rare = (*GROUPS, *(f"{group}._target_" for group in GROUPS), "hydra.run.dir", "x")
        key = chance.choice(list(values)) if chance.random() < 0.95 else chance.choice(rare)
        small.pop(key, None)
        sign = chance.choice(("",) * 30 + ("+", "++", "~"))
        value = chance.choice(_pool(values.get(key), chance))
        given.append(f"~{key}" if sign == "~" else f"{sign}{key}={value}")
    return [*(f"{key}={value}" for key, value in small.items()), *given]


USUAL = {
    "dataset": "digits", "model": "mlp", "partition": "classes", "transform": "none", "algorithm": "fedavg",
    "dp_variant": "ldp", "aggregator": "mean", "budget": "constant", "upload": "plain", "server": "sgd",
    "stage": "none", "logger": "csv",
}  # fmt: skip


def _pool(usual: Any, chance: random.Random) -> Sequence[str]:
    """Mostly what looks like the usual value, for another type is refused at once."""
    if chance.random() < 0.2:
        return chance.choice((NUMBERS, WHOLE, TEXTS, SHAPES, INTERPOLATIONS))
    text = str(usual)
    if text.startswith("["):
        return SHAPES
    if text.lstrip("-").isdigit():
        return WHOLE
    if text in ("null", "None") or text.startswith("${") or text.replace(".", "").replace("e-", "").isdigit():
        return chance.choice((NUMBERS, WHOLE))
    return TEXTS


# -- one of them


class _Slow(BaseException):
    pass


def _ring(*_: object) -> None:
    raise _Slow


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    clocks = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {which: signal.signal(which, _ring) for which in clocks}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        for which, clock in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(which, before[which])


def attempt(overrides: list[str], train: bool, folder: Path) -> tuple[str, str]:
    """accepted, refused, tracebacks, nonsense or slow; and why."""
    from fedpriv.config.mistakes import explain

    said = io.StringIO()
    try:
        with _alarm(SLOW), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cfg = _composed(overrides)
            if not train:
                from fedpriv.building import build

                build(cfg, prepare=not _long(cfg))
                return "accepted", ""
            return _trained(cfg, folder)
    except _Slow:
        return "slow", f"over {SLOW} s"
    except (Exception, SystemExit) as error:
        line = explain(error) if isinstance(error, Exception) else None
        if line is None:
            return "tracebacks", "".join(traceback.format_exception(error))[-1500:]
        return ("nonsense" if _says_nothing(line) else "refused"), line


def _says_nothing(line: str) -> bool:
    strange = ("None:", "?:", ":", "=")
    return (
        not line.strip()
        or "\n" in line
        or len(line) > 700
        or line.startswith(strange)
        or " object at 0x" in line
    )


def _composed(overrides: list[str]) -> Any:
    """As Hydra composes for `fedpriv run`, with the name of the run's folder."""
    from fedpriv.config.composing import plan

    return plan(overrides).config


def _trained(cfg: Any, folder: Path) -> tuple[str, str]:
    from fedpriv.config.checks import check
    from fedpriv.session.execution import execute

    check(cfg)
    cfg.rounds = min(cfg.rounds, 2)
    cfg.samples_at = [r for r in cfg.samples_at if r <= cfg.rounds]
    if _long(cfg):
        from fedpriv.building import build

        build(cfg, prepare=False)
        return "accepted", ""
    summary = execute(cfg, folder, "fuzz")
    problems = list(_nonsense(folder, summary))
    return ("nonsense", "; ".join(problems)) if problems else ("accepted", "")


def _long(cfg: Any) -> bool:
    """Whether training takes long because that is what was asked for."""
    stage = cfg.stage if isinstance(cfg.stage, Mapping) else {}
    work = (cfg.local_steps, cfg.local_epochs, stage.get("rounds"), stage.get("local_epochs"))
    sizes = cfg.model.get("sizes") if isinstance(cfg.model, Mapping) else None
    widths = [n for n in sizes if isinstance(n, int)] if isinstance(sizes, Sequence) else []
    return any(isinstance(n, int) and n > 5 for n in work) or max(widths, default=0) > 1000


def _nonsense(folder: Path, summary: dict[str, Any]) -> Iterator[str]:
    import csv

    def refuse(word: str) -> None:
        raise ValueError(word)

    for path in folder.glob("*.json"):
        try:
            json.loads(path.read_text(), parse_constant=refuse)
        except ValueError as error:
            yield f"{path.name} is no JSON: {error}"
    if not summary["rounds"]:
        yield "no round was trained"
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [
        float(v) for r in rows for k, v in r.items() if v and k != "epsilon_max" and k != "epsilon_mean"
    ]
    if not all(map(math.isfinite, numbers)) and "diverged" not in " ".join(summary["warnings"]):
        yield "a number is not finite and nothing says that it diverged"
    for name, value in summary.items():
        if name.startswith("accuracy") and isinstance(value, float) and not 0 <= value <= 1:
            yield f"{name} is {value}"
    for name in ("epsilon_spent", "epsilon_provable"):
        if summary[name] is not None and not summary[name] >= 0:
            yield f"{name} is {summary[name]}"


# -- many of them, in processes that may die


def worker(first: int, last: int) -> None:
    """One line of JSON before and after every configuration."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    import fedpriv.session.execution  # noqa: F401  what every configuration needs is not any one's time

    out = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for number in range(first, last):
            overrides = configuration(number)
            print(json.dumps({"number": number}), file=out, flush=True)
            train = random.Random(-1 - number).random() < SAMPLE
            began = time.perf_counter()
            kind, why = attempt(overrides, train, Path(scratch) / f"run-{number}")
            seconds = time.perf_counter() - began
            told = {"number": number, "kind": kind, "why": why, "overrides": overrides, "seconds": seconds}
            print(json.dumps({**told, "trained": train}), file=out, flush=True)


def fuzz(count: int, seconds: float, first: int = 0, log: Path | None = None) -> dict[str, int]:
    """Try `count` configurations, or as many as the time allows; how often what happened."""
    counts = dict.fromkeys(COUNTS, 0)
    end, number = time.monotonic() + seconds, first
    with open(log or os.devnull, "a") as notes:
        while number < first + count and time.monotonic() < end:
            number = _watched(number, first + count, end, counts, notes)
    return counts


def _watched(first: int, last: int, end: float, counts: dict[str, int], notes: Any) -> int:
    """A worker until it is done, dies, hangs or the time is over; the number to go on with."""
    command = [sys.executable, __file__, "--worker", str(first), str(last)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begun: int | None = None
    number = first
    try:
        while time.monotonic() < end:
            ready, _, _ = select.select(
                [process.stdout], [], [], min(STUCK, max(0.0, end - time.monotonic()))
            )
            if not ready:
                if time.monotonic() < end:
                    _count({"number": begun, "kind": "slow", "why": f"silent for {STUCK} s"}, counts, notes)
                    number = (begun if begun is not None else number) + 1
                break
            line = process.stdout.readline()
            if not line:
                if begun is not None or process.wait() != 0:
                    told = {"number": begun, "kind": "tracebacks", "why": f"died with code {process.wait()}"}
                    _count(told, counts, notes)
                    number = (begun if begun is not None else number) + 1
                break
            told = json.loads(line)
            begun = told["number"]
            if "kind" in told:
                _count(told, counts, notes)
                begun, number = None, told["number"] + 1
    finally:
        process.kill()
        process.wait()
    return number


def _count(told: dict[str, Any], counts: dict[str, int], notes: Any) -> None:
    counts["tried"] += 1
    counts[told["kind"]] += 1
    if told["kind"] not in ("accepted", "refused"):
        print(json.dumps(told), file=sys.stderr, flush=True)
    print(json.dumps(told), file=notes, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hostile configurations: run or refused in one line, soon.")
    parser.add_argument("count", type=int, nargs="?", default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument("--first", type=int, default=0, help="the number of the first configuration")
    parser.add_argument("--log", type=Path, help="a file for a line about each")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    counts = fuzz(given.count, given.seconds, given.first, given.log)
    print(", ".join(f"{value} {name}" for name, value in counts.items()))
    sys.exit(1 if any(counts[k] for k in ("tracebacks", "nonsense", "slow")) else 0)


if __name__ == "__main__":
    main()
