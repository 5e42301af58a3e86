"""`fedpriv audit` on many runs: does it cry wolf on sound code, and what does it measure of the methods?

  python scripts/audit_sweep.py [--runs 50] [--seed 0]   random compositions; every flag is a false alarm
  python scripts/audit_sweep.py --table [--out FILE]     provable against measured for the methods at 1, 4, 8
      [--only METHOD ...]                                these rows anew, the others as they are

The table goes to outputs/audits.csv, from where `fedpriv report` takes it.
"""

import argparse
import csv
import random
import sys
import time
from pathlib import Path

from fedpriv import UserError, compose
from fedpriv.audit import mechanism, one_run, one_shot, sensitivity
from fedpriv.audit.finding import Result
from fedpriv.audit.taps import Bench
from fedpriv.files import write_table
from fedpriv.session.screen import silence

TWICE = "clients=9 rounds=6 participations=2 separation=2 sample_rate=0.3333333333"
SMALL = ("model.sizes=[24]", "threads=1")
PARTS: dict[str, tuple[str, ...]] = {
    "dp": (
        "dp=ldp",
        "dp=ldp dp_variant.noise=uniform",
        "dp=cdp",
        "dp=cdp dp_variant.bound=adaptive",
        "dp=cdp dp_variant.clip=step",
        "dp=ddp",
        "dp=ddp dp_variant.against=outsider",
        "dp=ddp upload.protocol=masked",
        "dp=ddp upload.protocol=masked upload.dropout=0.2 upload.tolerance=0.3",
        "dp=duchi",
        "dp=duchi dp_variant.range=adaptive",
        "dp=duchi upload=shuffled",
        "dp=pldp_gaussian",
        "dp=pldp_sign",
        "dp=cdp_correlated",
        "dp=cdp_correlated dp_variant.matrix=blt",
        "dp=cdp_correlated dp_variant.matrix=tree",
        f"dp=cdp_correlated {TWICE}",
        f"dp=cdp_correlated dp_variant.matrix=blt {TWICE}",
        "dp=ldp_update",
        "dp=ldp_update dp_variant.noise=laplace",
    ),
    "agg": ("", "agg=size", "agg=pfa", "agg=weiavg", "agg=pfa_plus upload=projected"),
    "algorithm": ("", "algorithm=fedprox", "algorithm=fednova", "algorithm=ppsgd", "algorithm=dp_scaffold"),
    "server": ("", "", "", "server=momentum", "server=adam", "server=yogi"),
    "transform": ("", "transform=linear", "transform=tanh"),
    "stage": ("", "", "", "stage=fedpd stage.share=raw"),
    "budget": ("", "budget=uniform", "budget=mixgauss1"),
    "partition": ("", "partition=iid", "partition=dirichlet"),
    "rest": ("", "sample_rate=0.5", "momentum=0.5", "engine=loop", "weight_decay=0.01", "dtype=float64"),
    "epsilon": ("epsilon=1", "epsilon=4", "epsilon=8"),
}
METHODS = {
    "ldp": "dp=ldp",
    "cdp": "dp=cdp",
    "ddp": "dp=ddp",
    "pfa": "dp=ldp agg=pfa budget=mixgauss1 budget.weights=[0.5,0.5] budget.means=[{tenth},{epsilon}]",
    "duchi": "dp=duchi",
    "pldp_gaussian": "dp=pldp_gaussian",
    "pldp_sign": "dp=pldp_sign",
    "cdp_correlated": "dp=cdp_correlated dp_variant.matrix=blt",
    "cdp_correlated twice": "dp=cdp_correlated rounds=16 participations=2 separation=4 sample_rate=0.125",
    "ldp_update": "dp=ldp_update",
    "fedpd": "dp=ldp stage=fedpd stage.rounds=1 stage.latent=8 stage.cache=false",
}
OF_TABLE = ("model.sizes=[32]", "clients=20", "rounds=15", "threads=1")
HEADER = (
    "method",
    "epsilon",
    "claimed",
    "provable",
    "audit",
    "measured",
    "kind",
    "delta",
    "provable_there",
    "largest_move",
)


def sweep(runs: int, seed: int) -> int:
    draw, done, alarms = random.Random(seed), 0, 0
    began = time.monotonic()
    while done < runs:
        chosen = [draw.choice(options) for options in PARTS.values()]
        sizes = (
            f"clients={draw.choice((5, 6, 9))}",
            f"rounds={draw.choice((2, 5))}",
            f"batch_size={draw.choice((8, 32))}",
        )
        overrides = [*SMALL, *sizes, f"seed={draw.randrange(1000)}", *" ".join(chosen).split()]
        try:
            bench = Bench(compose(*overrides))
        except UserError:
            continue  # parts that do not fit each other
        results = [sensitivity.audit(bench, 8), mechanism.audit(bench, 60)]
        wrong = [f"{f.check}: {f.text}" for r in results for f in r.findings if f.verdict == "VIOLATED"]
        done, alarms = done + 1, alarms + any(r.violated for r in results)
        state = "ALARM" if wrong else "quiet"
        print(f"{done:3} {state} {' '.join(overrides[len(SMALL) :])} {'; '.join(wrong)}", flush=True)
    print(f"{alarms} false alarms in {runs} compositions, {time.monotonic() - began:.0f} s")
    return int(alarms > 0)


def table(out: Path, only: list[str]) -> int:
    kept: list[list[str]] = []
    if only and out.exists():
        with open(out, newline="") as file:
            kept = [row for row in list(csv.reader(file))[1:] if row[0] not in only]
    lines: list[tuple[object, ...]] = []
    for name, of_epsilon in METHODS.items():
        for epsilon in (1, 4, 8) if not only or name in only else ():
            began = time.monotonic()
            words = of_epsilon.format(epsilon=epsilon, tenth=epsilon / 10)
            bench = Bench(compose(*OF_TABLE, *words.split(), f"epsilon={epsilon}"))
            provable, claimed = one_run.promised(bench)
            move = sensitivity.audit(bench, 8)
            found = [
                one_run.audit(bench, 1000 if bench.unit == "sample" else 200, "server"),
                mechanism.audit(bench, 400),
            ]
            if bench.unit == "client":
                found.append(one_shot.audit(bench, 200))
            for result in found:
                lines.append(
                    (
                        name,
                        epsilon,
                        claimed,
                        provable,
                        *_line(result, bench),
                        move.details["largest_move_over_bound"],
                    )
                )
            said = ", ".join(f"{r.kind} {r.bound or 0:.2f} of {r.against}" for r in found)
            flag = "VIOLATED" if any(r.violated for r in (move, *found)) else ""
            print(f"{name} {epsilon}: {said} {flag} {time.monotonic() - began:.0f} s", flush=True)
            new = [["" if cell is None else cell for cell in line] for line in lines]
            order = list(METHODS)
            write_table(out, [HEADER, *sorted([*kept, *new], key=lambda row: order.index(str(row[0])))])
    return 0


def _line(result: Result, bench: Bench) -> tuple[object, ...]:
    kind = "bound" if result.is_bound else f"estimate, give or take {result.details['error']:.2g}"
    delta = result.details.get("delta", bench.trainer.ledger.delta)
    return result.kind, result.bound, kind, delta, result.against


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("outputs") / "audits.csv")
    parser.add_argument("--only", nargs="+", default=[], choices=list(METHODS), metavar="METHOD")
    given = parser.parse_args()
    silence(True)
    return table(given.out, given.only) if given.table else sweep(given.runs, given.seed)


if __name__ == "__main__":
    sys.exit(main())
