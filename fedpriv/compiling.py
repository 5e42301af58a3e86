"""Code compiled by numba and kept on the disk.

numba compiles a function again when the file it stands in has changed, but not when that of a function or
constant it uses has. Here it is compiled again when any of the files it is made of has.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit


def fingerprint(files: Iterable[Path]) -> str:
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def kept(*files: Path, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a function, with numba's options; `files` are all that its code comes from. It lets other
    threads run."""
    made_of = fingerprint(files)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Any = njit(nogil=True, cache=True, **options)(function)
        # The one place where numba keeps what a file was when it was compiled (0.60 to 0.68).
        known = compiled._cache._cache_file
        known._source_stamp = (known._source_stamp, made_of)
        return compiled  # type: ignore[no-any-return]

    return decorate
