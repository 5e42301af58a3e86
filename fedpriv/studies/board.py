"""`fedpriv board`: the page of a study, served to this machine alone and renewed while runs go on.

Python's own HTTP server, on the loopback address. It answers to GET only, and to names of this machine only,
so that no page from elsewhere can read it through a browser. Pictures go by a digest of their place: no path
of a request reaches the disk.
"""

import hashlib
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from fedpriv.errors import UserError
from fedpriv.session.screen import console
from fedpriv.studies import page, reader, selecting

HELP = """\
usage: fedpriv board [FOLDER ...] [key=value ...] [port=N]      (default: outputs, port 8765; 0: any free one)

Serves a page on this machine that is renewed while runs go on: progress of every run, curves, epsilon meters,
means over seeds, partitions, a table to sort, two configs compared. It only reads. Ctrl-C ends it.

example
  fedpriv board outputs/study
"""
PORT = 8765
_HERE = ("127.0.0.1", "localhost", "[::1]")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    told = selecting.sort_out(arguments, ("port",))
    reader.refuse_absent([folder for folder in told.folders if folder != selecting.EVERYWHERE])
    with serve(told.folders, told.filters, _port(told.options.get("port", str(PORT)))) as server:
        console.print(f"board     http://127.0.0.1:{server.server_port}/   (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("board ended; the runs go on")
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"port={text}: must be a whole number of at most 65535")
    return int(text)


def serve(folders: Sequence[Path], filters: dict[str, str], port: int) -> "Server":
    try:
        return Server(folders, filters, port)
    except OSError as problem:
        raise UserError(f"port={port}: cannot be used ({problem.strerror}); choose another") from problem


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folders: Sequence[Path], filters: dict[str, str], port: int):
        super().__init__(("127.0.0.1", port), _Handler)
        self.folders, self.filters = list(folders), dict(filters)
        self.pictures: dict[str, Path] = {}
        self._memory: reader.Memory = {}
        self._one = Lock()

    def page(self) -> str:
        """What is there now; folders that a sweep will make need not be there yet."""
        with self._one:
            problem, runs = "", reader.look([f for f in self.folders if f.is_dir()], self._memory)
            try:
                runs = selecting.chosen(runs, self.filters)
            except UserError as wrong:
                problem, runs = str(wrong), []
            title = ", ".join(map(str, self.folders))
            return page.render(runs, self._picture, title=title, live=True, problem=problem)

    def _picture(self, path: Path) -> str:
        state = path.stat()
        name = hashlib.sha256(f"{path} {state.st_mtime_ns}".encode()).hexdigest()[:24]
        self.pictures[name] = path
        return f"picture/{name}.png"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HERE:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path in ("/", "/live"):
            self._send(self.server.page().encode(), "text/html; charset=utf-8")
        elif picture := self.server.pictures.get(self.path.removeprefix("/picture/").removesuffix(".png")):
            try:
                self._send(picture.read_bytes(), "image/png")
            except FileNotFoundError:  # its run was deleted
                self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a line every two seconds says nothing."""
