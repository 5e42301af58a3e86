"""The page of a study, in a file and served: everything there, nothing loaded, nobody else let in."""

import http.client
import json
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from fedpriv.partitions import picture
from fedpriv.reproduce import recipe
from fedpriv.reproduce.report import render
from fedpriv.studies import board, charts, page, reader
from tests.helpers.browser import CHROMIUM, Browser
from tests.helpers.pages import Page
from tests.helpers.results import result
from tests.helpers.runs import put

WIDTHS = (1280, 390)


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    for seed in (0, 1):
        put(
            folder / f"a{seed}",
            "epsilon=2",
            f"seed={seed}",
            accuracies=[0.25, 0.5 + seed / 4],
            epsilon_spent=1.5,
        )
        put(folder / f"b{seed}", "epsilon=8", f"seed={seed}", accuracies=[0.5, 0.875], epsilon_spent=8.0)
    put(folder / "c", "epsilon=8", "seed=2", accuracies=[0.125], finished=False)
    put(folder / "d", "epsilon=8", "seed=3", accuracies=[], error="<b>no data</b> & no hope")
    for name in ("a0", "b0"):
        (folder / name / "partition.png").write_bytes(b"the same")
    (folder / "a1" / "partition.png").write_bytes(b"another")
    return folder


def read(text: str) -> tuple[Page, str]:
    parsed = Page()
    parsed.feed(text)
    return parsed, " ".join(" ".join(parsed.text).split())


def test_the_report_holds_everything_and_loads_nothing(fedpriv, study, tmp_path):
    done = fedpriv("report", "study")
    assert done.code == 0 and "written   study/report.html" in done.out
    text = (study / "report.html").read_text()
    parsed, words = read(text)
    assert parsed.open == [] and parsed.loads == []
    assert "4 finished" in words and "1 failed" in words and "unfinished 1/60" in words
    assert "0.625 ±0.177" in words, "means over seeds"
    assert "<b>no data</b>" in words and "&lt;b&gt;no data" in text, "an error is a text"
    assert text.count("data:image/png") == 2, "a partition that runs share is there once"
    assert "1.5 of 2" in words and "8 of 8" in words
    assert "setInterval" not in text and "fedpriv runs --diff" in words
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))
    assert data["study/a0"]["told"]["epsilon"] == "2" and data["study/a0"]["measured"]["accuracy"] == "0.5"


def test_names_cannot_leave_their_place(study, tmp_path):
    put(study / "<script>alert(1)</script>", "epsilon=4", "dataset.normalize=half")
    text = page.render(reader.look([study]), lambda path: "x.png", title="</title><script>", live=True)
    assert "<script>alert" not in text and text.count("<script") == 2


def test_a_curve_is_the_mean_of_its_seeds(study):
    runs = reader.look([study])
    two, eight = charts.settings(runs, ["epsilon", "seed"])
    assert (two.label, eight.label) == ("epsilon=2", "epsilon=8") and len(eight.runs) == 3
    assert [(r, m.mean, m.seeds) for r, m in two.points("accuracy_global")] == [(1, 0.25, 2), (2, 0.625, 2)]
    drawn = charts.svg([two], "accuracy_global", "accuracy", 1.0)
    (line,) = re.findall(r'polyline points="([^"]*)"', drawn)
    (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in line.split())
    top, bottom = 12, 270 - 38
    assert (bottom - y1) / (bottom - top) == pytest.approx(0.25, abs=0.01)
    assert (bottom - y2) / (bottom - top) == pytest.approx(0.625, abs=0.01) and x1 < x2
    assert charts.svg([two], "no_such_metric", "") == ""


@pytest.mark.parametrize("highest", [0.003, 0.9, 1, 7, 8, 32, 149, 1000])
def test_ticks_are_few_and_inside(highest):
    for whole in (False, True):
        ticks = charts._ticks(highest, whole)
        assert ticks[0] == 0 and len(ticks) <= 8 and ticks[-1] <= highest
        assert not whole or all(tick == int(tick) for tick in ticks)


def test_a_page_of_no_run_is_refused_and_of_one_that_only_began_is_not(fedpriv, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no run there" in fedpriv("report", "empty").err
    put(tmp_path / "one" / "r", accuracies=[], finished=False)
    assert fedpriv("report", "one").code == 0


# -- served


@contextmanager
def served(*folders, **filters):
    with board.serve(folders, filters, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, path="/", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_board_shows_what_is_there_now(study, tmp_path):
    with served(study, tmp_path / "later") as server:
        status, headers, content = get(server)
        parsed, words = read(content.decode())
        assert status == 200 and parsed.open == [] and "4 finished" in words
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert all(link.startswith("picture/") for link in parsed.loads) and len(parsed.loads) == 2
        assert get(server, f"/{parsed.loads[0]}")[2] in (b"the same", b"another")
        put(tmp_path / "later" / "new", "epsilon=8", "seed=9")
        assert "5 finished" in read(get(server, "/live")[2].decode())[1]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80"])
def test_the_board_answers_to_this_machine_alone(study, host):
    with served(study) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert (
            get(server, host=host)[0] == 403 and get(server, host=f"localhost:{server.server_port}")[0] == 200
        )


@pytest.mark.parametrize("path", ["/picture/../config.yaml", "/a0/config.yaml", "/picture/0.png", "//etc"])
def test_no_path_reaches_the_disk(study, path):
    with served(study) as server:
        get(server)
        assert get(server, path)[0] == 404


def test_filters_and_mistakes_of_the_board(fedpriv, study):
    with served(study, epsilon="2") as server:
        assert "2 finished" in read(get(server)[2].decode())[1]
        busy = fedpriv("board", "study", f"port={server.server_port}")
        assert busy.code == 2 and "cannot be used" in busy.err and busy.err.count("\n") == 1
    with served(study, epsilom="2") as server:
        assert "did you mean epsilon?" in read(get(server)[2].decode())[1]
    assert "whole number" in fedpriv("board", "port=99999").err
    assert "port=N" in fedpriv("board", "--help").out


# -- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


RIGHT = "[...document.querySelectorAll('nav a')].map(a => a.getBoundingClientRect().right)"
FIRST = "[...document.querySelectorAll('#table tbody')].map(b => b.rows[0].cells[0].textContent).join(' ')"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_runs_off_the_edge(browser, study, width):
    with served(study) as server:
        browser.open(f"http://127.0.0.1:{server.server_port}/", width)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        links = browser.ask(
            "[...document.querySelectorAll('nav a')].map(a => a.getBoundingClientRect().right)"
        )
        assert len(links) == 6 and max(links) <= width


def test_the_table_is_sorted_by_the_keyboard_and_stays_so(browser, study, tmp_path):
    with served(study) as server:
        browser.open(f"http://127.0.0.1:{server.server_port}/", 1280)
        for _ in range(40):
            browser.press("Tab")
            if browser.ask("document.activeElement.id") == "sort-accuracy":
                break
        else:
            pytest.fail("Tab does not reach the button")
        browser.press("Enter")
        assert browser.ask(FIRST) == "c a0 a1 b0 b1 d", "the smallest first, what has none last"
        browser.press("Enter")
        assert browser.ask(FIRST).startswith("b0 b1 a1 a0 c")
        assert browser.ask("document.activeElement.closest('th').ariaSort") == "descending"
        put(study / "z", "epsilon=8", "seed=8", accuracies=[0.5, 0.9375])
        browser.wait("document.querySelectorAll('#table tbody').length === 7")
        assert browser.ask(FIRST).startswith("z b0 b1"), "sorted still, after it was renewed"
        assert browser.ask("document.activeElement.id") == "sort-accuracy", "and the focus stays"
        assert browser.ask("document.querySelectorAll('#one option').length") == 7


def test_two_configs_are_compared(browser, fedpriv, study):
    fedpriv("report", "study")
    browser.open((study / "report.html").as_uri(), 390)
    browser.ask("one.value = 'study/a0', other.value = 'study/b0', one.dispatchEvent(new Event('change'))")
    shown = browser.ask("[...diff.rows].map(r => [...r.cells].map(c => c.textContent).join(' '))")
    assert shown[:2] == [" a0 b0", "epsilon 2 8"] and "accuracy 0.5 0.875" in shown and len(shown) == 4


def test_progress_and_meters_are_what_was_measured(browser, study):
    with served(study) as server:
        browser.open(f"http://127.0.0.1:{server.server_port}/", 1280)
        assert browser.ask("[...document.querySelectorAll('progress')].map(p => [p.value, p.max])") == [
            [1, 60]
        ]
        meters = browser.ask("[...document.querySelectorAll('meter')].map(m => [m.value, m.max])")
        assert meters == [[1.5, 2], [8, 8]]


def test_the_navigation_of_what_was_reproduced_wraps_on_a_phone(browser, tmp_path):
    numbers = {("fedavg", "2"): [0.69, 0.70], ("privatefl", "2"): [0.80, 0.84]}
    made = result("privatefl/table4", tmp_path, numbers, epsilon_spent=2.0, epsilon_provable=2.5, seconds=4.0)
    many = [made]
    for name in ("pldpfl/fig2", "pfa/fig3", "ldpfl/fig3", "fedpd/table1"):
        cell = tuple(recipe.load(name).cells()[0].facts.values())
        many.append(result(name, tmp_path, {cell: 0.5}))
    (tmp_path / "report.html").write_text(render(many, tmp_path))
    browser.open((tmp_path / "report.html").as_uri(), 390)
    links = browser.ask(RIGHT)
    assert len(links) > 5 and max(links) <= 390
    assert browser.ask("document.documentElement.scrollWidth") <= 390


def test_partitions_are_shown(browser, study):
    """A real picture has a size on the page."""
    picture.draw(np.eye(4, 5, dtype=int)).savefig(study / "a0" / "partition.png")
    with served(study) as server:
        browser.open(f"http://127.0.0.1:{server.server_port}/", 390)
        browser.wait("[...document.images].some(i => i.complete && i.naturalWidth > 100)")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "nothere"], "nothere: no folder with runs"),
        (["report", "one", "out=page.pdf"], "out=page.pdf: a report is a page"),
        (["board", "nothere"], "nothere: no such folder"),
    ],
)
def test_what_is_no_folder_or_no_page_is_refused(fedpriv, tmp_path, words, told):
    put(tmp_path / "one")
    done = fedpriv(*words)
    assert done.code == 2 and done.err.count("\n") == 1 and told in done.err
    assert not (tmp_path / "page.pdf").exists()
