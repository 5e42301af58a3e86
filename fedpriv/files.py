"""Files that are never seen half written."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or nothing, even if the machine dies here."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
