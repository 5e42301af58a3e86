"""Accuracy against heterogeneity (PrivateFL, Figure 7): a point an epsilon, joined in their order."""

from collections.abc import Sequence

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, canvas, finish, looks
from fedpriv.studies.groups import by_value, over_seeds
from fedpriv.studies.reader import Result

VIEWS = {
    "local": "local accuracy (own network, own test split)",
    "global": "global accuracy (whole test set)",
}
PICKS = {"last": "last round", "best": "best round, picked on test data"}


def draw(runs: Sequence[Result], *, by: Sequence[str] = (), view: str = "local", pick: str = "last") -> Drawn:
    for name, value, allowed in (("view", view, VIEWS), ("pick", pick, PICKS)):
        if value not in allowed:
            raise UserError(f"{name}={value}: choose one of {', '.join(allowed)}")
    refuse_mixed("emd-accuracy", runs, [*NAMED, "epsilon"], by)
    lines, rows = lines_of(runs, by), []
    figure, axes = canvas("mean EMD between clients' training losses", f"{VIEWS[view]}\n{PICKS[pick]}")
    look = looks(lines)
    for line, members in lines.items():
        groups = by_value(members, "epsilon") if line.dp != "none" else {"": members}
        emd = [over_seeds(g, lambda r: r.last("emd_mean")) for g in groups.values()]
        accuracy = [
            over_seeds(g, lambda r: float(r.summary[f"accuracy_{view}_{pick}"])) for g in groups.values()
        ]
        several = any(m.std is not None for m in emd)
        axes.errorbar(
            [m.mean for m in emd],
            [m.mean for m in accuracy],
            [m.spread for m in accuracy] if several else None,
            [m.spread for m in emd] if several else None,
            elinewidth=0.8,
            **look[line],
        )
        for epsilon, x, y in zip(groups, emd, accuracy, strict=True):
            if epsilon != "":
                axes.annotate(
                    f"{epsilon:g}",
                    (x.mean, y.mean),
                    (4, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=look[line]["color"],
                )
            rows.append(
                {
                    **line.cells(by),
                    "epsilon": epsilon,
                    "emd_mean": x.mean,
                    f"accuracy_{view}_{pick}": y.mean,
                    "emd_std_over_seeds": x.std,
                    "accuracy_std_over_seeds": y.std,
                    "seeds": x.seeds,
                }
            )
    return finish(Drawn(figure, rows), runs, look, mark="bars", more="numbers: epsilon")
