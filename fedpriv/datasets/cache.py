"""Keep what took long to compute in the user's cache folder, since the data folder may be read-only."""

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

Arrays = dict[str, np.ndarray]


def cached(
    name: str, source: Path, options: dict[str, Any], build: Callable[[], Arrays], *, needed: bool = True
) -> Arrays:
    """`build()`, or its earlier result for the same options and a source of the same size and time.

    `needed`: it takes so long that it is worth a word if the result cannot be kept.
    """
    state = source.stat()
    key = json.dumps([str(source.resolve()), state.st_size, state.st_mtime_ns, options], sort_keys=True)
    stem = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = Path(platformdirs.user_cache_dir("fedpriv")) / "prepared" / f"{name}-{stem}.npz"
    if path.is_file():
        try:
            with np.load(path, allow_pickle=False) as content:
                return {entry: content[entry] for entry in content}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            warnings.warn(f"{path} is damaged and is made anew ({error})", stacklevel=2)
    arrays = build()
    _write(path, arrays, needed)
    return arrays


def _write(path: Path, arrays: Arrays, needed: bool) -> None:
    # A name of its own per process: two runs may prepare the same data at once.
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        part.replace(path)
    except OSError as error:
        if os.path.exists(part):
            part.unlink()
        if needed:
            warnings.warn(
                f"prepared data is not kept, the next run prepares it again ({error})", stacklevel=4
            )
