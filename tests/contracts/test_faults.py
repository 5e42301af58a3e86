"""Each promise is really asked: a part with one fault fails the check that is about it."""

import pytest

from fedpriv.contracts.bench import bench, tried

PARTS = "tests.contracts.parts"


def failures(name: str, **options) -> str:
    results = [(check.name, *tried(check)) for check in bench(f"{PARTS}.{name}", options).checks()]
    return "; ".join(f"{what}: {why}" for what, state, why in results if state == "FAILED")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Trimmed", "one client and more"),
        ("MedianOfAnswers", "is no mean"),
        ("NotSymmetric", "symmetric='rows'"),
        ("TooLight", "weighs 0.25, not 0.125"),
        ("Forgets", "stopped and continued"),
        ("ElsewhereMean", "uploads on cuda"),
        ("HalfNoise", "the noise is no less than what is charged"),
        ("Unclipped", "the noise is no less than what is charged"),
        ("Peeks", "absence changes what others send"),
        ("LoudSamples", "the noise is no less than what is charged"),
        ("Loses", "mixes nothing"),
    ],
)
def test_a_fault_is_found(name, expected):
    assert expected in failures(name)


@pytest.mark.parametrize("name", ["Median", "NoisyUpdates"])
def test_a_good_part_passes(name):
    assert not failures(name)


def test_the_command(fedpriv, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fedpriv.aggregators.base import Aggregator\n\n\n"
        "class Trimmed(Aggregator):\n"
        "    def __init__(self, *, trim: int = 1):\n        self.trim = trim\n\n"
        "    def __call__(self, uploads, round_):\n"
        "        trim = min(self.trim, (len(uploads) - 1) // 2)\n"
        "        return uploads.sort(0).values[trim : len(uploads) - trim].mean(0)\n"
    )
    good = fedpriv("check", "mine.Trimmed", "trim=2")
    assert good.code == 0, good.out + good.err
    lines = good.out.splitlines()
    assert lines[0] == "mine.Trimmed: aggregator" and len(lines) > 8 and "FAILED" not in good.out
    bad = fedpriv("check", f"{PARTS}.TooLight")
    assert bad.code == 1 and bad.out.count("FAILED") == 1 and not bad.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.Part"], "cannot be imported"),
        (["pathlib.Path"], "derives from none of"),
        ([f"{PARTS}.Median", "trim"], "name=value"),
        ([f"{PARTS}.Median", "trim=1"], "trim"),
        ([f"{PARTS}.Silent"], "does not say what it needs"),
    ],
)
def test_a_mistake_is_one_line(fedpriv, arguments, expected):
    done = fedpriv("check", *arguments)
    assert done.code in (1, 2)
    assert expected in done.out + done.err and "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 1
