"""Fetch one file over the network: with a timeout, and kept only if its checksum is right."""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedpriv.errors import UserError

TIMEOUT_SECONDS = 10
SHOW_PROGRESS_ABOVE = 4_000_000  # bytes
BLOCK = 1 << 20


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def digest(path: Path, algorithm: str = "md5") -> str:
    """The hexadecimal checksum of a file."""
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            state.update(block)
    return state.hexdigest()


def download(
    urls: Sequence[str], target: Path, *, label: str, md5: str | None = None, sha256: str | None = None
) -> None:
    """Fetch `target` from the first of `urls` that delivers it intact, or raise one `UserError`."""
    reasons = []
    part = target.with_name(target.name + ".part")
    for url in _encrypted_first(urls, checked=bool(md5 or sha256)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _receive(url, part, target.name)
            _compare(part, md5, sha256)
            part.replace(target)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            reasons.append(_reason(error))
        finally:
            if os.path.exists(part):
                part.unlink()
    why = "; ".join(dict.fromkeys(reasons)) or "no address is known"
    raise UserError(
        f"{label}: no {target.name} in {target.parent} and it cannot be fetched ({why}); "
        "put the official files there or set data_dir (or FEDPRIV_DATA) to a folder that has them"
    )


def _encrypted_first(urls: Sequence[str], checked: bool) -> list[str]:
    """Every address by https; then, if a checksum tells what was changed on the way, by http as published."""
    plain = [url for url in urls if url.startswith("http://")]
    return [*dict.fromkeys(re.sub("^http://", "https://", url) for url in urls), *(plain if checked else ())]


def _receive(url: str, part: Path, name: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "fedpriv"})  # some hosts refuse urllib's own
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response, part.open("wb") as stream:
        total = int(response.headers.get("Content-Length") or 0)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        quiet = total <= SHOW_PROGRESS_ABOVE
        with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
            received = _copy(response, stream, progress, name, total)
    if total and received != total:
        raise ValueError(f"{received} of {total} bytes arrived")


def _copy(response: BinaryIO, stream: BinaryIO, progress: Progress, name: str, total: int) -> int:
    task, received = progress.add_task(name, total=total or None), 0
    while block := response.read(BLOCK):
        stream.write(block)
        received += len(block)
        progress.update(task, completed=received)
    return received


def _compare(path: Path, md5: str | None, sha256: str | None) -> None:
    for algorithm, expected in (("md5", md5), ("sha256", sha256)):
        if expected is not None and (actual := digest(path, algorithm)) != expected:
            raise ValueError(f"wrong {algorithm} {actual}, expected {expected}")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"no network: {one_line(error.reason)}"
    if isinstance(error, TimeoutError):
        return f"no network: nothing arrived for {TIMEOUT_SECONDS} s"
    return one_line(error)
