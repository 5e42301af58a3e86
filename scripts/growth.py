"""How the time of a round and the memory of a run grow with clients and rounds; prints a table.

  python scripts/growth.py [--clients 100,1000,10000] [--rounds 2000] [--only clients|rounds]

A round is all of it: training, evaluation, the record and the checkpoints, in processor seconds: others on
the machine do not count. "EMD" is the part of it that the earth mover's distance takes. Features of random
numbers, so that ten thousand clients have data.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SETTING = ("dataset=features", "dataset.path=random.npz", "model=linear", "partition=iid", "threads=1")


def measured(place: Path, *overrides: str) -> dict[str, Any]:
    """Seconds of every round, of the distances in it, and the most memory, of one run in a child."""
    result, folder = place / "result.json", place / "-".join(overrides)
    child = os.fork()
    if not child:
        code = 1
        try:
            _run(result, (*SETTING, *overrides, f"data_dir={place}", f"hydra.run.dir='{folder}'"))
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{' '.join(overrides)}: failed")
    return json.loads(result.read_text())


def _run(result: Path, arguments: tuple[str, ...]) -> None:
    from fedpriv.commands import main as cli
    from fedpriv.rounds import trainer

    starts, distances = list[float](), list[float]()
    round_, emd = trainer.Trainer.round, trainer.earth_movers_distances

    def timed_round(self: Any) -> Any:
        starts.append(time.process_time())
        return round_(self)

    def timed_emd(history: Any) -> Any:
        began = time.process_time()
        try:
            return emd(history)
        finally:
            distances.append(time.process_time() - began)

    trainer.Trainer.round, trainer.earth_movers_distances = timed_round, timed_emd  # type: ignore[method-assign]
    before = _memory()
    sys.argv, sys.stdout = ["fedpriv"], open(os.devnull, "w")  # noqa: SIM115
    try:
        cli.main(["run", *arguments])
    except SystemExit as stop:
        assert not stop.code, arguments
    seconds = np.diff(starts).tolist()
    found = {"seconds": seconds, "emd": distances[: len(seconds)], "memory": _memory() - before}
    result.write_text(json.dumps(found))


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _row(what: str, found: dict[str, Any], part: slice) -> None:
    seconds, emd = (np.mean(found[key][part]) for key in ("seconds", "emd"))
    print(f"| {what} | {seconds:.4f} | {emd:.4f} | {found['memory']:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--only", choices=("clients", "rounds"))
    given = parser.parse_args()

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20_000, 16)).astype("float32"), np.arange(20_000) % 10
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "features").mkdir()
        np.savez(place / "features" / "random.npz", x_train=x, y_train=y, x_test=x[:2000], y_test=y[:2000])
        if given.only != "rounds":
            print(
                "| clients | sampled | s a round | of it EMD | memory, MB |\n| --- | --- | --- | --- | --- |"
            )
            for clients in map(int, given.clients.split(",")):
                for rate in (1.0, 0.01 if clients > 1000 else 0.1):
                    own = (f"clients={clients}", f"sample_rate={rate}", "rounds=12", "checkpoint.every=5")
                    found = measured(place, *own, "dp=none")
                    row = (np.median(found["seconds"]), np.median(found["emd"]), found["memory"])
                    print(
                        f"| {clients:,} | {rate:.0%} | {row[0]:.4f} | {row[1]:.4f} | {row[2]:.0f} |",
                        flush=True,
                    )
        if given.only != "clients":
            print("\n| sampled | fifth of the rounds | s a round | of it EMD | memory, MB |")
            print("| --- | --- | --- | --- | --- |")
            for rate in (1.0, 0.1):
                own = ("clients=100", f"sample_rate={rate}", f"rounds={given.rounds}")
                found, fifth = measured(place, *own, "dp=none"), given.rounds // 5
                for word, part in (("first", slice(fifth)), ("last", slice(-fifth, None))):
                    seconds, emd = (np.mean(found[k][part]) for k in ("seconds", "emd"))
                    print(
                        f"| {rate:.0%} | {word} | {seconds:.4f} | {emd:.4f} | {found['memory']:.0f} |",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
