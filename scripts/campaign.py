"""A campaign against runs: random kills and faults, hostile configurations; `make campaign`.

Every case must end with the numbers of the run that nothing happened to ("right") or with one line that says
what is wrong ("refused"). Anything else is a finding, printed with what repeats it: "wrong" (other numbers),
"traceback", "stuck". Runs are children of this process, which has everything imported: a case takes a second.

  python scripts/campaign.py [--minutes 30] [--kills 150] [--faults 100] [--configs 2000] [--seed 0]
"""

import argparse
import csv
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

SMALL = ("model.sizes=[8]", "clients=5", "rounds=6", "threads=1", "checkpoint.every=1")
COMPOSITIONS = (
    (),
    ("dp=none", "model.norm=batch"),
    ("dp=cdp", "sample_rate=0.5"),
    ("dp=cdp", "dp.bound=adaptive"),
    ("dp=none", "algorithm=scaffold"),
    ("algorithm=dp_scaffold", "sample_rate=0.6"),
    ("dp=none", "algorithm=fednova", "partition=dirichlet", "momentum=0.5"),
    ("algorithm=fedbn", "algorithm.norm=group", "model.norm=group", "model.sizes=[16]"),
    ("transform=linear", "samples_at=[0,2,4]"),
    ("algorithm.server_momentum=0.9", "momentum=0.5", "weight_decay=0.01"),
    ("agg=size", "partition=dirichlet", "evaluate_every=3"),
    ("sample_rate=0.4", "evaluate_every=2", "checkpoint.every=2"),
    ("noise_seed=os",),
    ("budget=uniform",),
    ("participations=3", "sample_rate=0.5"),
    ("dtype=float64", "checkpoint.every=4"),
)
LIMIT = 120.0  # seconds of one command
Outcome = str  # "right", "refused", or a finding


# -- a command in a child process


class Ended:
    """How a command ended: its exit code (negative: the signal) and what it said."""

    def __init__(self, code: int, said: str):
        self.code, self.said = code, said


def command(
    arguments: tuple[str, ...], before: Callable[[], object] = lambda: None, kill: float = 0
) -> Ended:
    """`fedpriv run` in a child; `before` prepares the child, `kill` ends it after so many seconds."""
    with tempfile.TemporaryFile() as out:
        return _command(arguments, before, kill, out)


def _command(arguments: tuple[str, ...], before: Callable[[], object], kill: float, out: Any) -> Ended:
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setpgid(0, 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            from fedpriv.commands import main as cli

            before()
            sys.argv = ["fedpriv"]
            cli.main(["run", *arguments])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    began = time.monotonic()
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        late = time.monotonic() - began
        if (kill and late > kill) or late > LIMIT:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    out.seek(0)
    text = out.read().decode(errors="replace")
    stuck = "stuck" if time.monotonic() - began > LIMIT else ""
    return Ended(os.waitstatus_to_exitcode(done[1]), text + stuck)


def numbers(folder: Path) -> dict[str, Any]:
    """All that a run says, without what depends on the clock, the process or chance from the system."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("seconds", "peak_memory_mb"):
        del summary[name]
    privacy = json.loads((folder / "privacy.json").read_text())
    return {
        "rows": rows,
        "clients": (folder / "clients.csv").read_bytes(),
        "summary": summary,
        "privacy": privacy,
    }


def secret(arguments: tuple[str, ...]) -> bool:
    return "noise_seed=os" in arguments


class Bench:
    """Whole runs to compare with, and folders to work in."""

    def __init__(self, place: Path, rng: random.Random):
        self.place, self.rng, self._number = place, rng, 0
        self.whole = cache(self._whole)
        self.half = cache(self._half)

    def folder(self) -> Path:
        self._number += 1
        return self.place / f"run{self._number}"

    def _whole(self, arguments: tuple[str, ...]) -> tuple[dict[str, Any], float, Path]:
        _warm(arguments)
        folder, began = self.folder(), time.monotonic()
        ended = command((*arguments, f"hydra.run.dir={folder}"))
        if ended.code:
            raise RuntimeError(f"{arguments} does not run: {ended.said}")
        return numbers(folder), time.monotonic() - began, folder

    def _half(self, arguments: tuple[str, ...]) -> Path:
        """A run that was killed before its fifth round."""
        folder = self.folder()
        command((*arguments, f"hydra.run.dir={folder}"), lambda: _die_at("round", 5))
        return folder

    def judge(self, arguments: tuple[str, ...], folder: Path, ended: Ended) -> Outcome:
        """What became of a command that nothing disturbed any more."""
        if "Traceback" in ended.said:
            return "traceback"
        if ended.said.endswith("stuck"):
            return "stuck"
        if ended.code == 2 and "error: " in ended.said:
            return "refused"
        if ended.code:
            return f"exit {ended.code}"
        found, right = numbers(folder), self.whole(arguments)[0]
        if secret(arguments):  # another key, other numbers: complete and in order is all there is to see
            same = [r["round"] for r in found["rows"]] == [r["round"] for r in right["rows"]]
        else:
            same = found == right
        return "right" if same else "wrong"


# -- faults inside the child


def _die_at(what: str, call: int) -> None:
    """End the child, without a word, at the nth round, sync, rename or removal."""
    _at(what, call, lambda: os._exit(137))


def _fail_at(what: str, call: int, number: int) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    _at(what, call, fail)


def _at(what: str, call: int, act: Callable[[], None]) -> None:
    from fedpriv.rounds.trainer import Trainer

    owner, name = {
        "round": (Trainer, "round"),
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "unlink": (Path, "unlink"),
    }[what]
    original, count = getattr(owner, name), 0

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            act()
        return original(*arguments, **more)

    setattr(owner, name, counted)


# -- kills


def kill_case(bench: Bench, more: tuple[str, ...]) -> tuple[Outcome, int]:
    """One run killed up to three times at any moment, then left alone."""
    arguments, kills = (*SMALL, *more), 0
    seconds, folder = bench.whole(arguments)[1], bench.folder()
    own = (*arguments, f"hydra.run.dir={folder}")
    for _ in range(bench.rng.randint(1, 3)):
        ended = command(own, kill=bench.rng.uniform(0.02, seconds))
        if ended.code != -signal.SIGKILL:
            break  # done before
        kills += 1
    outcome = bench.judge(arguments, folder, command(own))
    if outcome == "right" and secret(arguments) and kills:
        outcome = outcome if (folder / "noise.key").stat().st_size else "wrong"
    shutil.rmtree(folder)
    return outcome, kills


# -- faults


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _lines(path: Path, change: Callable[[list[bytes]], object]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    body = lines[1:]
    change(body)
    path.write_bytes(b"".join([lines[0], *body]))


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "removed": lambda path, rng: path.unlink(),
    "emptied": lambda path, rng: path.write_bytes(b""),
    "cut": _cut,
    "a bit flipped": _flip,
    "a row doubled": lambda path, rng: _lines(path, lambda b: b.insert(0, b[rng.randrange(len(b))])),
    "a row lost": lambda path, rng: _lines(path, lambda b: b.pop(rng.randrange(len(b)))),
    "rows shuffled": lambda path, rng: _lines(path, rng.shuffle),
    "rows added": lambda path, rng: path.write_bytes(path.read_bytes() + b"9,0.5,0.\n"),
}
TABLES = ("metrics.csv", "clients.csv")
DAMAGED = (*TABLES, *TABLES, "checkpoint.pt", "checkpoint.previous.pt", "identity.txt")


def damaged_folder(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """A killed run's file damaged before it continues."""
    folder, rng = bench.folder(), bench.rng
    shutil.copytree(bench.half(arguments), folder)
    name = rng.choice(DAMAGED)
    kinds = list(DAMAGES) if name in TABLES else list(DAMAGES)[:4]
    kind = rng.choice(kinds)
    told += [name, kind]
    if (folder / name).exists():
        DAMAGES[kind](folder / name, rng)
    return bench.judge(arguments, folder, command((*arguments, f"hydra.run.dir={folder}")))


def damaged_meanwhile(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """A table damaged while the run writes it."""
    folder, rng = bench.folder(), bench.rng
    name, kind, call = rng.choice(TABLES), rng.choice(list(DAMAGES)[:3]), rng.randint(2, 5)
    told += [name, kind, f"before round {call}"]
    state = rng.randrange(1 << 30)

    def act() -> None:
        DAMAGES[kind](folder / name, random.Random(state))

    own = (*arguments, f"hydra.run.dir={folder}")
    first = bench.judge(arguments, folder, command(own, lambda: _at("round", call, act)))
    if first != "refused":
        return first
    again = bench.judge(arguments, folder, command(own))  # and the same command does no harm afterwards
    return again if again in ("right", "refused") else f"then {again}"


def failing_call(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """A system call that fails once, or at which the machine stops; then the same command."""
    folder, rng = bench.folder(), bench.rng
    what, call = rng.choice(("fsync", "replace")), rng.randint(1, 40)
    number = rng.choice((errno.ENOSPC, errno.EIO, errno.EDQUOT, 0))
    told += [what, f"call {call}", errno.errorcode.get(number, "stops")]
    own = (*arguments, f"hydra.run.dir={folder}")
    disturb = (lambda: _fail_at(what, call, number)) if number else (lambda: _die_at(what, call))
    first = command(own, disturb)
    if "Traceback" in first.said and number in (errno.ENOSPC,):
        return "traceback"
    return bench.judge(arguments, folder, command(own))


def full_disk(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """No file may be larger than so many bytes; then the same command with room."""
    folder, size = bench.folder(), bench.rng.choice((0, 100, 1000, 3000, 10_000, 20_000, 40_000))
    told += [f"{size} bytes"]
    own = (*arguments, f"hydra.run.dir={folder}")
    command(own, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    return bench.judge(arguments, folder, command(own))


def forgotten(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """resume=false of another config killed on the way: neither run may end with the other's numbers."""
    folder, rng = bench.folder(), bench.rng
    source, call = rng.choice((bench.half(arguments), bench.whole(arguments)[2])), rng.randint(1, 16)
    told += ["of a whole run" if (source / "summary.json").exists() else "of half a run", f"file {call}"]
    shutil.copytree(source, folder)
    other = (*arguments, "seed=77")
    command((*other, "resume=false", f"hydra.run.dir={folder}"), lambda: _die_at("unlink", call))
    one, another = (arguments, other) if rng.random() < 0.5 else (other, arguments)
    first = bench.judge(one, folder, command((*one, f"hydra.run.dir={folder}")))
    if first != "refused":
        return first
    return bench.judge(another, folder, command((*another, f"hydra.run.dir={folder}")))


def exchanged(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """Files of another run copied over those of a killed one."""
    folder, other = bench.folder(), bench.half((*arguments, "seed=77"))
    shutil.copytree(bench.half(arguments), folder)
    names = [n for n in ("checkpoint.pt", "identity.txt", *TABLES) if bench.rng.random() < 0.5]
    told += names
    for name in names:
        if (other / name).exists():
            shutil.copy(other / name, folder / name)
    return bench.judge(arguments, folder, command((*arguments, f"hydra.run.dir={folder}")))


def stopped(bench: Bench, arguments: tuple[str, ...], told: list[str]) -> Outcome:
    """A polite signal before a round: Ctrl-C, hang-up or the end of a batch job."""
    folder, rng = bench.folder(), bench.rng
    number, call = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)), rng.randint(1, 6)
    told += [number.name, f"round {call}"]
    own = (*arguments, f"hydra.run.dir={folder}")
    first = command(own, lambda: _at("round", call, lambda: os.kill(os.getpid(), number)))
    if "Traceback" in first.said:
        return "traceback"
    return bench.judge(arguments, folder, command(own))


FAULTS = (damaged_folder, damaged_folder, damaged_meanwhile, failing_call, failing_call, full_disk, forgotten)
FAULTS += (exchanged, stopped)


# -- the campaign


def kills(bench: Bench, count: int, until: float) -> dict[str, int]:
    found: Counter[str] = Counter(kills=0)
    while found["kills"] < count and time.monotonic() < until:
        more = bench.rng.choice(COMPOSITIONS)
        outcome, number = kill_case(bench, more)
        found["kills"] += number
        found["runs"] += 1
        found[outcome] += 1
        if outcome != "right":
            print(f"finding: kill of {' '.join(more)}: {outcome}", flush=True)
    return dict(found)


def faults(bench: Bench, count: int, until: float) -> dict[str, int]:
    found: Counter[str] = Counter(faults=0)
    while found["faults"] < count and time.monotonic() < until:
        arguments = (*SMALL, *bench.rng.choice(COMPOSITIONS[:12]))
        case, told = FAULTS[found["faults"] % len(FAULTS)], list[str]()
        outcome = case(bench, arguments, told)
        found["faults"] += 1
        found[outcome] += 1
        if outcome not in ("right", "refused"):
            print(
                f"finding: {case.__name__}, {', '.join(told)}, {' '.join(arguments)}: {outcome}", flush=True
            )
    return dict(found)


def _prepare() -> None:
    """Import what children need, and spare them the pictures: most of a small run's time."""
    import fedpriv.commands.job  # noqa: F401
    from fedpriv.partitions import picture
    from fedpriv.session import pictures, recorder, training  # noqa: F401

    nothing: Any = lambda *_: None  # noqa: E731
    pictures.curves = pictures.budgets = picture.save = nothing
    revision = recorder.git_revision()
    recorder.git_revision = lambda: revision


def _warm(arguments: tuple[str, ...]) -> None:
    """Calibrate the noise here, where it is remembered: children inherit it."""
    import fedpriv

    fedpriv.build(*arguments)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    for name, default in (("kills", 150), ("faults", 100), ("configs", 2000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    began, seconds = time.monotonic(), 60 * given.minutes
    _prepare()
    counts: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), random.Random(given.seed))
        counts["kills"] = kills(bench, given.kills, began + seconds * 0.4)
        counts["faults"] = faults(bench, given.faults, began + seconds * 0.7)
    try:
        from fuzz import fuzz
    except ImportError:
        print("configurations: scripts/fuzz.py is not there")
    else:
        counts["configurations"] = fuzz(given.configs, began + seconds - time.monotonic())
    for part, found in counts.items():
        print(f"{part}: " + ", ".join(f"{number} {name}" for name, number in found.items()))
    print(f"{time.monotonic() - began:.0f} s")
    bad = {n for part in ("kills", "faults") for n in counts[part]} - {
        "kills",
        "faults",
        "runs",
        "right",
        "refused",
    }
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
