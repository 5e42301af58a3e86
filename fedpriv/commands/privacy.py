"""`fedpriv privacy`: what a run will guarantee and how much noise each client adds, before any training."""

import numpy as np
from omegaconf import DictConfig
from rich.table import Table

from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.privacy.accountants import ACCOUNTANTS
from fedpriv.privacy.ledger import Ledger
from fedpriv.session.screen import console, errors, number, privacy_line


def show(cfg: DictConfig) -> None:
    run = build(cfg, prepare=False)
    for warning in run.warnings:
        errors.print(f"warning: {warning}", soft_wrap=True)
    trainer = run.trainer
    setting, guarantee = trainer.setting, trainer.ledger.guarantee
    rounds = trainer.wiring.participation.rounds_charged(setting)
    report = trainer.ledger.report(planned=np.full(setting.clients, rounds), noise_seeded=trainer.seeded)
    console.print(privacy_line(report), soft_wrap=True)
    facts = {
        "unit": report["unit"],
        "neighbours": report["neighbouring_relation"],
        "sampler": report["sampler"],
        "accountant": report["accountant"],
        "charged rounds a client": str(rounds),
        "local steps a round": _span(setting.steps),
        "samples a client": _span(setting.sizes),
        "epsilon budget": _span(setting.budgets),
        "noise multiplier": _span(guarantee.noise),
        "epsilon claimed": _span(trainer.ledger.claimed(np.full(setting.clients, rounds))),
        "epsilon provable": number(report["epsilon_provable_max"]),
        "noise": report["noise"],
    }
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in facts.items():
        table.add_row(name, text)
    for name, seen in report.get("observers", {}).items():
        stated = ", the budget's" if name == report["against"] else ""
        epsilon = number(seen["epsilon_max"])
        table.add_row(
            f"against {name}{stated}",
            f"epsilon {epsilon}; sees {seen['sees']}; {seen['neighbouring_relation']}",
        )
    for name, text in _other_accountants(trainer.ledger, rounds).items():
        table.add_row(f"epsilon by {name}", text)
    for release in report.get("releases", ()):
        table.add_row("sent once", f"{release['what']}, alone epsilon {number(release['epsilon_alone'])}")
    for flaw in report["flaws"]:
        table.add_row("flaw", flaw)
    for missing in report["not_covered"]:
        table.add_row("not covered", missing)
    console.print(table)


def _other_accountants(ledger: Ledger, rounds: int) -> dict[str, str]:
    """What every accountant says of the same noise, for the client that spends most."""
    guarantee = ledger.guarantee
    charges = guarantee.provable or guarantee.if_mended
    if charges is None:
        return {}
    spent = ledger.epsilons(charges, np.full(len(ledger.budgets), rounds))
    most = int(np.argmax(spent))
    once = tuple(e for r in ledger.releases for e in r.charge(most))
    said = {}
    for name, kind in ACCOUNTANTS.items():
        try:
            epsilon = kind().epsilon(charges[guarantee.kinds[most]], rounds, ledger.delta, once)
            said[name] = f"{epsilon:.4g}"
        except UserError as problem:
            said[name] = f"cannot say: {problem}"
    return said


def _span(values: np.ndarray) -> str:
    """One number, or the smallest, the middle and the largest."""
    low, middle, high = (float(f(values)) for f in (np.min, np.median, np.max))
    if low == high:
        return f"{low:.4g}"
    return f"{low:.4g} to {high:.4g}, median {middle:.4g}"
