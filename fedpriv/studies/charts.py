"""Lines over the rounds as SVG, for a page that loads nothing: a mean and a band a setting."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.figures.style import COLOURS
from fedpriv.studies.groups import Mean, mean_of
from fedpriv.studies.reader import Result
from fedpriv.studies.runs import told_of

MOST = 14  # settings that can be told apart
_DASHES = ("", "7 4", "2 4")
_WIDTH, _HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 38


@dataclass(frozen=True)
class Setting:
    """Runs that differ in the seed alone, and how their line looks."""

    label: str
    runs: tuple[Result, ...]
    colour: str
    dash: str

    def points(self, name: str) -> list[tuple[int, Mean]]:
        columns = [run.column(name) for run in self.runs]
        rounds = sorted({r for column in columns for r in column})
        found = [(r, [c[r] for c in columns if r in c and math.isfinite(c[r])]) for r in rounds]
        return [(r, mean_of(values)) for r, values in found if values]


def settings(runs: Sequence[Result], keys: Sequence[str]) -> list[Setting]:
    """Everything that began, by what it was told besides the seed."""
    groups: dict[str, list[Result]] = {}
    for run in runs:
        if run.rounds:
            told = told_of(run, [key for key in keys if key != "seed"])
            groups.setdefault(" ".join(f"{k}={v}" for k, v in told.items()) or "all runs", []).append(run)
    return [
        Setting(label, tuple(members), COLOURS[n % len(COLOURS)], _DASHES[n // len(COLOURS) % len(_DASHES)])
        for n, (label, members) in enumerate(groups.items())
    ]


def svg(shown: Sequence[Setting], name: str, title: str, top: float | None = None) -> str:
    """One metric over the rounds; empty where nothing was measured."""
    lines = [(setting, points) for setting in shown if (points := setting.points(name))]
    if not lines:
        return ""
    last = max(points[-1][0] for _, points in lines)
    highest = top or max(m.mean + m.spread for _, points in lines for _, m in points) or 1.0

    def x(round_: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * round_ / max(last, 1)

    def y(value: float) -> float:
        share = min(max(value / highest, 0.0), 1.0)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f"<title>{html.escape(title)}</title>"
    ]
    for tick in _ticks(highest):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(last, whole=True):
        parts.append(f'<text x="{x(tick):.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">round</text>')
    for setting, points in lines:
        if any(m.std for _, m in points):
            upper = [f"{x(r):.1f},{y(m.mean + m.spread):.1f}" for r, m in points]
            lower = [f"{x(r):.1f},{y(m.mean - m.spread):.1f}" for r, m in reversed(points)]
            parts.append(
                f'<polygon points="{" ".join([*upper, *lower])}" fill="{setting.colour}" opacity="0.12"/>'
            )
        path = " ".join(f"{x(r):.1f},{y(m.mean):.1f}" for r, m in points)
        stroke = f'stroke="{setting.colour}" stroke-dasharray="{setting.dash}"'
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="2" {stroke}/>')
        end, mean = points[-1]
        parts.append(f'<circle cx="{x(end):.1f}" cy="{y(mean.mean):.1f}" r="3" fill="{setting.colour}"/>')
    return "".join([*parts, "</svg>"])


def _ticks(highest: float, whole: bool = False) -> list[float]:
    """From 0, at round numbers, not more than eight of them; `whole`: at whole numbers."""
    step = 10 ** math.floor(math.log10(highest / 4)) if highest > 0 else 1.0
    times = (1, 2, 5, 10, 20) if whole else (1, 2, 2.5, 5, 10, 20)
    step = max(step, 1.0) if whole else step
    step *= next(t for t in times if highest / (step * t) <= 7)
    return [round(n * step, 10) for n in range(int(highest / step + 1e-9) + 1)]
