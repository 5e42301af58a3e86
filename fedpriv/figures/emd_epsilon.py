"""Heterogeneity against privacy (PrivateFL, Figure 1).

The mean earth mover's distance between the clients' training losses, with its deviation over pairs of
clients, as epsilon varies; the dashed lines are what the data alone brings, without differential privacy.
"""

from collections.abc import Sequence

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, band, canvas, finish, looks, whole_ticks
from fedpriv.studies.groups import by_value, over_seeds
from fedpriv.studies.reader import Result


def draw(runs: Sequence[Result], *, by: Sequence[str] = ()) -> Drawn:
    refuse_mixed("emd-epsilon", runs, [*NAMED, "epsilon"], by)
    lines = lines_of(runs, by)
    budgets = sorted({r.values["epsilon"] for r in runs if r.private})
    if not budgets:
        raise UserError("emd-epsilon: all runs have dp=none and no epsilon; add runs with dp=ldp or dp=cdp")
    figure, axes = canvas("epsilon", "EMD between clients' training losses")
    look, rows = looks(lines), []
    step = 0.012 * (budgets[-1] - budgets[0])  # so that the bars of several lines do not hide each other
    shown = [line for line in lines if line.dp != "none"]
    for line, members in lines.items():
        groups = by_value(members, "epsilon") if line.dp != "none" else {"": members}
        emd = [over_seeds(g, lambda r: r.last("emd_mean")) for g in groups.values()]
        pairs = [over_seeds(g, lambda r: r.last("emd_std")).mean for g in groups.values()]
        rows += [
            {
                **line.cells(by),
                "epsilon": x,
                "emd_mean": m.mean,
                "emd_std_over_pairs": p,
                "emd_std_over_seeds": m.std,
                "seeds": m.seeds,
            }
            for x, m, p in zip(groups, emd, pairs, strict=True)
        ]
        style = look[line]
        if line.dp == "none":
            axes.axhline(emd[0].mean, color=style["color"], linestyle="--", label=style["label"])
            low, high = emd[0].mean - emd[0].spread, emd[0].mean + emd[0].spread
            axes.axhspan(low, high, color=style["color"], alpha=0.15, linewidth=0)
            continue
        x = [e + step * (shown.index(line) - (len(shown) - 1) / 2) for e in groups]
        axes.errorbar(x, [m.mean for m in emd], pairs, capsize=3, elinewidth=0.8, **style)
        band(axes, x, emd, style["color"])
    whole_ticks(axes, budgets)
    axes.set_ylim(bottom=0)
    return finish(Drawn(figure, rows), runs, look, more="bars: deviation over pairs of clients")
