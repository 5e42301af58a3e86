"""Heterogeneity against how many classes a client has (PrivateFL, Figures 3, 6a, 6c and 8).

The mean earth mover's distance between the clients' training losses, from non-i.i.d. to i.i.d. data.
"""

from collections.abc import Sequence

from fedpriv.errors import UserError
from fedpriv.figures.lines import NAMED, lines_of, refuse_mixed
from fedpriv.figures.style import Drawn, band, canvas, finish, looks, whole_ticks
from fedpriv.studies.groups import by_value, over_seeds
from fedpriv.studies.reader import Result

AXIS = "partition.classes_per_client"


def draw(runs: Sequence[Result], *, by: Sequence[str] = ()) -> Drawn:
    for run in runs:
        if AXIS not in run.values:
            raise UserError(
                f"{run.folder}: partition={run.values['partition']} has no classes_per_client; leave it out"
            )
    refuse_mixed("emd-classes", runs, [*NAMED, AXIS], by)
    lines, rows = lines_of(runs, by), []
    figure, axes = canvas("classes per client", "mean EMD between clients' training losses")
    look = looks(lines)
    for line, members in lines.items():
        groups = by_value(members, AXIS)
        emd = [over_seeds(g, lambda r: r.last("emd_mean")) for g in groups.values()]
        rows += [
            {
                **line.cells(by),
                "classes_per_client": x,
                "emd_mean": m.mean,
                "emd_std_over_seeds": m.std,
                "seeds": m.seeds,
            }
            for x, m in zip(groups, emd, strict=True)
        ]
        axes.plot(list(groups), [m.mean for m in emd], **look[line])
        band(axes, list(groups), emd, look[line]["color"])
    whole_ticks(axes, (r["classes_per_client"] for r in rows))
    axes.set_ylim(bottom=0)
    return finish(Drawn(figure, rows), runs, look)
