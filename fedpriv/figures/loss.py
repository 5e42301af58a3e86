"""Test loss of the global model over the rounds (PrivateFL, Figures 6b and 6d): a line a setting."""

from collections.abc import Sequence

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, band, canvas, finish, looks, whole_ticks
from fedpriv.studies.groups import mean_of, one_a_seed
from fedpriv.studies.reader import Result


def draw(runs: Sequence[Result], *, by: Sequence[str] = ()) -> Drawn:
    refuse_mixed("loss", runs, NAMED, by)
    lines, rows = lines_of(runs, by), []
    figure, axes = canvas("round", "loss on the whole test set, mean of clients")
    look = looks(lines)
    for line, members in lines.items():
        columns = [run.column("loss_global") for run in one_a_seed(members)]
        rounds = sorted(set().union(*columns))
        if not rounds:
            raise UserError(f"{members[0].folder}: no loss_global in metrics.csv; leave this run out")
        means = [mean_of([c[r] for c in columns if r in c]) for r in rounds]
        rows += [
            {
                **line.cells(by),
                "round": r,
                "loss_global": m.mean,
                "loss_std_over_seeds": m.std,
                "seeds": m.seeds,
            }
            for r, m in zip(rounds, means, strict=True)
        ]
        every = max(1, len(rounds) // 10)
        axes.plot(rounds, [m.mean for m in means], markevery=every, **look[line])
        band(axes, rounds, means, look[line]["color"])
    whole_ticks(axes, (r["round"] for r in rows))
    axes.set_ylim(bottom=0)
    return finish(Drawn(figure, rows), runs, look)
