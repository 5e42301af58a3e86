"""The W&B logger: what arrives, that offline stays off the network, and that failures stay harmless."""

import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from fedpriv.loggers import wandb_logger
from fedpriv.loggers.wandb_logger import WandbLogger, run_id

ROOT = Path(__file__).resolve().parents[2]

# Every connection of a child's Python side is written down before it is made. The service process is
# not Python: the proxy below and strace watch that one.
AUDIT = """
import ipaddress, sys
def watch(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "localhost", "127.0.0.1", "::1"):
        print("LOOKUP", args[0], flush=True)
    if event == "socket.connect" and isinstance(args[1], tuple):
        if not ipaddress.ip_address(args[1][0]).is_loopback:
            print("CONNECT", args[1], flush=True)
sys.addaudithook(watch)
"""

OFFLINE_RUN = """
import sys
from pathlib import Path
from fedpriv.loggers.wandb_logger import WandbLogger
folder = Path(sys.argv[1])
logger = WandbLogger(mode="offline")
logger.start(name="a run", config={"model": {"name": "mlp"}}, folder=folder)
for step in (1, 2, 1):
    logger.log({"round": step, "accuracy": step / 4, "seconds": 0.5})
logger.finish({"final": 2.5, "seconds": 7.5, "rounds": 2}, {"clients": folder / "clients.csv"})
"""

# W&B online, by way of its service process.
ONLINE_RUN = """
import contextlib, sys, wandb
with contextlib.suppress(Exception):
    wandb.init(mode="online", dir=sys.argv[1], settings=wandb.Settings(silent=True, init_timeout=2))
"""

# What the environment may ask for: the opposite of everything the logger promises.
HOSTILE = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "true"}

# Connecting a datagram socket sends nothing, but it is a connection for everybody who watches.
DELIBERATE = "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]
        wandb_logger._server.clear()
        yield
        wandb_logger._server.clear()


@pytest.fixture
def proxy() -> Iterator[SimpleNamespace]:
    """A proxy on this machine that answers nobody and remembers what was asked."""
    server = socket.create_server(("127.0.0.1", 0))
    asked: list[str] = []

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                asked.append(client.recv(200).decode(errors="replace"))

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    yield SimpleNamespace(
        asked=asked,
        env={**dict.fromkeys(names, url), **{n.upper(): url for n in names}, "NO_PROXY": "", "no_proxy": ""},
    )
    server.close()


def child(code: str, folder: Path, env: dict[str, str], before: tuple[str, ...] = ()) -> str:
    (folder / "clients.csv").write_text("round,client,loss\n1,0,0.5\n1,1,\n")
    result = subprocess.run(
        [*before, sys.executable, "-c", AUDIT + code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder / "home"), **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def records(folder: Path) -> list[Any]:
    """The protobuf records of the one offline run below the folder (its file is a LevelDB log)."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            found.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return found


def values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_offline_run_holds_the_values_and_asks_nobody(tmp_path: Path, proxy: SimpleNamespace) -> None:
    told = child(OFFLINE_RUN, tmp_path, {**proxy.env, **HOSTILE})
    (kept,) = tmp_path.glob("wandb/offline-run-*")
    assert told.split() == ["wandb", "wandb", "sync", str(kept)]
    assert proxy.asked == []

    found = records(tmp_path)
    (run,) = [record.run for record in found if record.HasField("run")]
    assert (run.run_id, run.display_name, run.project) == (run_id(tmp_path), "a run", "fedpriv")
    assert values(run.config.update)["model"] == {"name": "mlp"}
    rows = [values(record.history.item) for record in found if record.HasField("history")]
    assert [(row["_step"], row["round"], row["accuracy"]) for row in rows] == [(1, 1, 0.25), (2, 2, 0.5)]
    summary = {k: v for r in found if r.HasField("summary") for k, v in values(r.summary.update).items()}
    assert summary["final"] == 2.5 and summary["seconds"] == 7.5  # the total, not the last round's
    metrics = {r.metric.glob_name or r.metric.name: r.metric for r in found if r.HasField("metric")}
    assert metrics["*"].summary.none  # or W&B puts the last round's there when it is sent
    assert (run.run_group, run.job_type) == (tmp_path.parent.name, "train")
    (result,) = tmp_path.glob("wandb/offline-run-*/files/media/table/tables/result*.json")
    assert ["seconds", "7.5"] in json.loads(result.read_text())["data"]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/tables/clients*.json")
    assert json.loads(table.read_text())["data"] == [[1, 0, 0.5], [1, 1, None]]
    assert not (tmp_path / "home").exists()


def test_the_watch_sees_connections(tmp_path: Path, proxy: SimpleNamespace) -> None:
    child(ONLINE_RUN, tmp_path, {**proxy.env, "WANDB_API_KEY": "0" * 40})
    assert any("Go-http-client" in request for request in proxy.asked)  # the service process
    assert "192.0.2.1" in child(DELIBERATE, tmp_path, {})


def traced(code: str, folder: Path) -> list[str]:
    """Connections beyond this machine, of the child and its own children."""
    trace = folder / "trace"
    child(code, folder, HOSTILE, ("strace", "-f", "--seccomp-bpf", "-e", "trace=connect", "-o", str(trace)))
    lines = [line for line in trace.read_text().splitlines() if "connect(" in line]
    local = ("AF_UNIX", 'inet_addr("127.', '"::1"', "AF_UNSPEC")
    return [line for line in lines if not any(mark in line for mark in local)]


def strace_works() -> bool:
    command = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect", "-o", os.devnull, "true"]
    return shutil.which("strace") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not strace_works(), reason="strace is missing or not permitted here")
def test_no_process_of_an_offline_run_connects(tmp_path: Path) -> None:
    assert traced(DELIBERATE, tmp_path)
    assert traced(OFFLINE_RUN, tmp_path) == []
    assert list(tmp_path.glob("wandb/offline-run-*"))


def use(logger: WandbLogger, folder: Path) -> None:
    (folder / "rounds.csv").write_text("round,accuracy\n1,0.5\n")
    logger.start(name="n", config={}, folder=folder)
    logger.log({"round": 1, "accuracy": 0.5})
    logger.log({"round": 2, "accuracy": 0.5})
    logger.finish({"final": 1}, {"rounds": folder / "rounds.csv"})


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.name == wandb_logger.__name__]
    message = record.getMessage()
    assert record.levelno == logging.WARNING and "\n" not in message and "CSV files are complete" in message
    return message


class FakeRun:
    def __init__(self, failing: str = "") -> None:
        self.failing, self.rows, self.summary, self.finished = failing, [], {}, 0

    def define_metric(self, name: str, **options: Any) -> None:
        self.metric = (name, options)

    def log(self, row: dict[str, Any], step: int) -> None:
        if self.failing == "log":
            raise RuntimeError("no\nmore")
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished += 1
        if self.failing == "finish":
            raise SystemExit(1)


@pytest.mark.parametrize("error", [RuntimeError("no service\nmore lines"), SystemExit(3)])
def test_failing_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    monkeypatch.setattr("wandb.init", mock.Mock(side_effect=error))
    use(WandbLogger(), tmp_path)
    assert "start failed" in only_warning(caplog)


def test_wandb_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    use(WandbLogger(), tmp_path)
    assert "start failed" in only_warning(caplog)


@pytest.mark.parametrize("failing", ["log", "finish"])
def test_failing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    run = FakeRun(failing)
    monkeypatch.setattr("wandb.init", mock.Mock(return_value=run))
    use(WandbLogger(), tmp_path)
    assert f"{failing} failed" in only_warning(caplog)
    assert len(run.rows) == (0 if failing == "log" else 2)


def test_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    monkeypatch.setattr("wandb.init", lambda **_: release.wait(30))
    monkeypatch.setattr(WandbLogger, "limit", 0.2)
    use(WandbLogger(), tmp_path)
    release.set()
    assert "no answer" in only_warning(caplog)


@pytest.mark.parametrize(
    ("asked", "variable", "expected"),
    [
        (None, None, "offline"),
        (None, "online", "online"),
        ("offline", "online", "offline"),
        ("online", "offline", "online"),
        ("disabled", "online", None),
        (None, "disabled", None),
    ],
)
def test_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any, variable: str | None, expected: str | None
) -> None:
    init = mock.Mock(return_value=FakeRun())
    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr(wandb_logger, "_answers", lambda url: True)
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    use(WandbLogger(mode=asked), tmp_path)
    assert [call.kwargs["mode"] for call in init.call_args_list] == ([expected] if expected else [])


def test_no_network_is_found_out_once_and_all_cells_go_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, init = [], mock.Mock(return_value=FakeRun())
    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr(wandb_logger, "_answers", lambda url: bool(asked.append(url)))
    for _ in range(3):
        use(WandbLogger(mode="online"), tmp_path)
    assert asked == ["https://api.wandb.ai"]
    assert [call.kwargs["mode"] for call in init.call_args_list] == ["offline"] * 3
    assert "offline" in only_warning(caplog)


def test_a_server_that_refuses_a_start_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = mock.Mock(side_effect=[RuntimeError("timed out"), FakeRun()])
    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr(wandb_logger, "_answers", lambda url: True)
    for _ in range(2):
        use(WandbLogger(mode="online"), tmp_path)
    assert [call.kwargs["mode"] for call in init.call_args_list] == ["online", "offline"]


def test_only_a_server_that_says_something_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert not wandb_logger._answers(f"http://127.0.0.1:{port}")
    assert not wandb_logger._answers("no address")


def test_values_and_a_capped_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    monkeypatch.setattr("wandb.init", mock.Mock(return_value=run))
    monkeypatch.setattr(wandb_logger, "TABLE_ROWS", 2)
    (tmp_path / "clients.csv").write_text("round,loss\n1,0.5\n2,0.25\n3,0.1\n")
    logger = WandbLogger()
    logger.start(name="n", config={}, folder=tmp_path)
    logger.log({"round": 7, "accuracy": 0.5, "epsilon": None})
    logger.finish({"final": 1}, {"clients": tmp_path / "clients.csv"})
    assert run.rows == [(7, {"round": 7, "accuracy": 0.5, "epsilon": None})]
    assert run.summary["final"] == 1 and run.finished == 1
    assert run.summary["tables/clients"].data == [[1, 0.5], [2, 0.25]]
    assert run.summary["tables/clients_note"] == "the first 2 of 3 rows; all of them are in clients.csv"


def test_run_id(tmp_path: Path) -> None:
    odd = tmp_path / "a=1,b:2/ü"
    assert run_id(odd) == run_id(odd / ".." / odd.name)
    assert run_id(tmp_path / "x" / "0") != run_id(tmp_path / "y" / "0")
    assert set(run_id(tmp_path / "a=1,b:2")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert 0 < len(run_id(tmp_path / ("n" * 250))) < 100
