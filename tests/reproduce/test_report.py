"""Figures, the page and the section of results, from hand-made rows."""

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from fedpriv.reproduce import recipe, results, rows
from fedpriv.reproduce.compare import Comparison
from fedpriv.reproduce.draw import close, draw
from fedpriv.reproduce.report import render
from fedpriv.reproduce.table import picture
from tests.conftest import refused
from tests.helpers.pages import Page
from tests.helpers.results import result

ROOT = Path(__file__).parents[2]


def curve(*values: float) -> dict:
    return {
        "accuracy_global_last": values[-1],
        rows.CURVE: " ".join(f"{i}:{v}" for i, v in enumerate(values, 1)),
    }


@pytest.fixture
def rounds(tmp_path) -> Comparison:
    """Figure 2 of PLDP-FL: two seeds of one cell, one of two others."""
    numbers = {
        ("none", "arithmetic"): [curve(0.5, 0.8), curve(0.7, 0.9)],
        ("1", "arithmetic"): [curve(0.2, 0.3)],
        ("1,1,10", "weighted"): [curve(0.4, 0.5)],
    }
    return result("pldpfl/fig2", tmp_path, numbers)


def drawn(axes) -> dict[str, tuple[list, list]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def test_a_figure_over_rounds_is_the_mean_of_the_curves(rounds):
    figure = draw(rounds)
    first, second = (axes for axes in figure.axes if axes.get_visible())
    assert [axes.get_title() for axes in (first, second)] == ["method arithmetic", "method weighted"]
    assert drawn(first)["none"] == ([1, 2], pytest.approx([0.6, 0.85]))
    assert drawn(first)["1"] == ([1, 2], pytest.approx([0.2, 0.3]))
    assert drawn(second) == {"1,1,10": ([1, 2], pytest.approx([0.4, 0.5]))}
    assert first.get_ylabel() == "accuracy on the whole test set"


def test_the_papers_number_is_marked_in_its_panel(rounds):
    first, second = draw(rounds).axes[:2]
    assert [text.get_text() for text in first.texts] == ["paper 0.887"] and not second.texts
    level = next(line for line in first.get_lines() if line.get_linestyle() == ":")
    assert list(level.get_ydata()) == [0.887, 0.887]


def test_numbers_that_are_close_share_a_label():
    assert close([0.1, 0.14, 0.18, 0.4], 0.05) == [[0.1, 0.14, 0.18], [0.4]]
    assert close([], 0.05) == []


def test_what_a_rule_makes_can_be_drawn_and_words_are_not_joined(tmp_path):
    sent = {
        (m, who): [{"uplink_bytes": n * 2**20}]
        for m in ("logreg", "cnn")
        for who, n in (("pfa+", 12), ("others", 113))
    }
    figure = draw(result("pfa/fig7", tmp_path, sent))
    for axes in figure.axes:
        (line,) = [
            line for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() != "None"
        ]
        assert (list(line.get_xdata()), list(line.get_ydata())) == (["pfa+", "others"], [12, 113])
        assert line.get_linestyle() == "None" and axes.get_ylabel() in ("megabytes", "")


def test_a_figure_over_an_axis_is_in_the_order_of_its_numbers(tmp_path):
    numbers = {("mnist", n, "with"): a for n, a in (("100", 0.9), ("10", 0.3), ("50", 0.7))}
    figure = draw(result("ldpfl/fig3", tmp_path, numbers))
    assert drawn(figure.axes[0]) == {"with": ([10, 50, 100], pytest.approx([0.3, 0.7, 0.9]))}


def test_without_a_budget_there_is_a_level_and_no_point(tmp_path):
    numbers = {("ldp", e): {"emd": v} for e, v in (("2", 0.4), ("8", 0.2), ("inf", 0.1))}
    (axes,) = draw(result("privatefl/fig1", tmp_path, numbers)).axes
    assert drawn(axes)["ldp"] == ([2, 8], pytest.approx([0.4, 0.2])) and axes.get_ylabel() == "emd"
    (level,) = (line for line in axes.get_lines() if line.get_linestyle() == "--")
    assert list(level.get_ydata()) == [0.1, 0.1]


def test_one_measured_number_against_another(tmp_path):
    values = {"2": (0.5, 0.6), "8": (0.3, 0.9)}
    own = recipe.load("privatefl/fig7").values["accuracy"]
    numbers = {("mnist", "ldp", "fedavg", e): {"emd": x, own: y} for e, (x, y) in values.items()}
    axes = draw(result("privatefl/fig7", tmp_path, numbers)).axes[0]
    assert drawn(axes) == {"ldp, fedavg": ([0.3, 0.5], pytest.approx([0.9, 0.6]))}


def test_nothing_inside_a_picture_is_cut_off(rounds, tmp_path):
    (path,) = picture(rounds, tmp_path / "figures")
    assert path.name == "pldpfl-fig2.png" and path.read_bytes().startswith(b"\x89PNG")
    figure = draw(rounds)
    figure.canvas.draw()
    width, height = figure.get_size_inches() * figure.dpi
    for box in (figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()):
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height


def test_long_lists_of_budgets_are_counted(tmp_path):
    budgets = "5,5,5,5,5,15,15,15,15,15"
    figure = draw(result("pldpfl/fig5", tmp_path, {(budgets, "weighted"): [curve(0.1, 0.2)]}))
    assert list(drawn(figure.axes[0])) == ["5×5, 5×15"]


def test_no_figure_without_runs_or_where_the_paper_has_none(tmp_path):
    assert draw(Comparison(recipe.load("pldpfl/fig2"), tmp_path)) is None
    table = result("privatefl/table4", tmp_path, {("fedavg", "2"): 0.7})
    assert draw(table) is None and picture(table, tmp_path / "figures") == []


# -- the page


def test_the_page_holds_everything_and_loads_nothing(rounds, tmp_path):
    numbers = {("fedavg", "2"): [0.69, 0.70], ("privatefl", "2"): [0.80, 0.84]}
    done = result("privatefl/table4", tmp_path, numbers, epsilon_spent=2.0, epsilon_provable=2.5, seconds=4.0)
    text = render([rounds, done, Comparison(recipe.load("pfa/fig3"), tmp_path)], tmp_path)
    page = Page()
    page.feed(text)
    words = " ".join(" ".join(page.text).split())
    assert page.open == [] and page.loads == [] and text.count('src="data:image/png;base64,') == 1
    assert ".695 ± .007 (.691)" in words.replace("( ", "(").replace(" )", ")")
    assert "PrivateFL above FedAvg" in words and "holds" in words
    assert re.search(r"privatefl/table4 \S+ 2 2\.5", words), "claimed and provable epsilon"
    assert "pfa/fig3" in words, "what was not run is named"


def test_a_page_of_nothing_is_refused(tmp_path):
    refused(lambda: render([Comparison(recipe.load("pfa/fig3"), tmp_path)], tmp_path))


# -- the section of results


def test_results_are_counted_once_and_failing_claims_named(tmp_path):
    numbers = {("fedavg", "2"): [0.69, 0.70], ("privatefl", "2"): [0.60, 0.61], ("fedavg", "8"): 0.785}
    done = result("privatefl/table4", tmp_path, numbers)
    text = results.section([done, done])
    assert "2 of the 875 numbers" not in text, "three cells of the table were run"
    assert "3 of the 875 numbers printed in the papers' tables have runs of ours, 2 are within 0.03" in text
    assert "| privatefl/table4 |  | 5 | 1 to 2 | 3 | 2 | 0 | 1 | 0 | 0 | 0, 0, 1 |" in text
    assert "- PrivateFL, table4: PrivateFL above FedAvg: fails (0 hold, 0 tie, 1 fail, 2 seeds)" in text


def test_the_section_is_replaced_between_its_marks(tmp_path, rounds):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{results.BEGIN}\nof last year\n{results.END}\nafter\n")
    results.write([rounds], path)
    text = path.read_text()
    assert (
        text.startswith("before\n") and text.endswith(f"{results.END}\nafter\n") and "last year" not in text
    )
    assert results.section([rounds]) in text
    path.write_text("no marks")
    refused(lambda: results.write([rounds], path))


def test_a_claim_of_ones_own_recipe_may_fail(tmp_path, monkeypatch):
    done = result("privatefl/table4", tmp_path, {("fedavg", "2"): 0.7, ("privatefl", "2"): 0.6})
    monkeypatch.setattr(done.recipe, "paper", "mine")
    assert "- mine, table4: PrivateFL above FedAvg: fails" in results.section([done])


def test_the_results_that_are_committed_are_those_that_are_told(tmp_path):
    """Of the last commit alone: whoever has made results of their own is not asked to tell them."""
    pack = subprocess.run(
        ["git", "archive", "HEAD", "outputs/README.md", "outputs/reproduced"], cwd=ROOT, capture_output=True
    )
    if pack.returncode:
        pytest.skip("not a checkout")
    with tarfile.open(fileobj=io.BytesIO(pack.stdout)) as archive:
        archive.extractall(tmp_path)
    every = [Comparison(recipe.load(name), tmp_path / "outputs" / "reproduced") for name in recipe.names()]
    told = (tmp_path / "outputs" / "README.md").read_text()
    assert results.section(every) in told, "`fedpriv report readme=outputs/README.md`"


def test_the_page_has_what_was_audited(rounds, tmp_path):
    """A line a measured bound, in red above what is provable or claimed; without a file: no section."""
    folder = tmp_path / "reproduced"
    assert 'id="audit"' not in render([rounds], folder)
    lines = [
        "method,epsilon,claimed,provable,audit,measured,kind,delta,provable_there,largest_move",
        "ldp,4,4,4,one-run,1.25,bound,1e-05,6.1,1.002",
        "duchi,1,1,5000,one-run,3.5,bound,1e-05,5200,",
        "cdp,1,1,1,one-shot,1.09,estimate,0.001,1,0.99",
    ]
    (tmp_path / "audits.csv").write_text("\n".join(lines))
    page = render([rounds], folder)
    assert 'id="audit"' in page and page.count("breaks the claim") == 1 and "breaks the promise" not in page
    (tmp_path / "audits.csv").write_text("\n".join([lines[0], lines[1].replace("1.25", "6.2")]))
    assert "breaks the promise" in render([rounds], folder)
