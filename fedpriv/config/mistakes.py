"""One line instead of a traceback, for the mistakes Hydra and OmegaConf find in a command line."""

import difflib
import errno
import re
import traceback
from collections.abc import Iterator

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException, ValidationError

from fedpriv.config.limits import cut
from fedpriv.config.schema import GROUPS, described
from fedpriv.errors import UserError

_FILES = {
    getattr(errno, name): reason
    for name, reason in {
        "ENAMETOOLONG": "a name in it is too long",
        "EFBIG": "the file would be larger than allowed here",
        **dict.fromkeys(
            ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ELOOP",
             "EIO", "EINVAL", "EMFILE", "ENFILE", "ENXIO", "ENODEV", "EBUSY", "ETXTBSY", "ENOTSUP", "ENOLCK"),
            None,
        ),
    }.items()
}  # fmt: skip
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
_HINT = "(in the command line; `fedpriv run --help` shows the form)"
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation")


def explain(error: BaseException) -> str | None:
    """What is wrong and what is allowed; None where the error is not the user's."""
    for each in _causes(error):
        if isinstance(each, UserError):
            return str(each)
    if found := re.match(r"UserError raised while resolving interpolation: (.*)", str(error)):
        return found.group(1)
    if "integer string conversion" in str(error):
        return f"a number has thousands of digits {_HINT}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.partition("/")
        if error.options:
            options = ", ".join(sorted(error.options))
            return f"{group}={cut(option)}: no such option; choose one of {options}"
    if isinstance(error, OSError) and error.errno in _FILES:
        return _file(error)
    if isinstance(error, MemoryError) or any(word in str(error) for word in _OUT_OF_MEMORY):
        return (
            f"not enough memory ({_first_line(error)}); lower clients, rounds, batch_size or the size of the "
            "model"
        )
    if found := re.search("Ambiguous value for argument '(.*)'", str(error)):
        key, _, values = found.group(1).partition("=")
        return (
            f"{cut(found.group(1))}: has several values; add -m to run each, or write one list as "
            f"'{key}=[{cut(values)}]'"
        )
    if isinstance(error, OverrideParseException):
        override, reason = cut(error.override), cut(str(error).splitlines()[0])
        return f"{override}: cannot be read ({reason}); quote brackets in the shell"
    if any(isinstance(each, RecursionError) for each in _causes(error)):
        return f"values of the command line refer to each other in a circle {_HINT}"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _from_text(error)
    if _while_composing(error):
        return f"{_first_line(error)} {_HINT}"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return cut(next((line for line in lines if line), type(error).__name__), 200)


def _file(error: OSError) -> str:
    reason = _FILES[error.errno] or error.strerror
    if error.filename is None:
        return f"a file of the run cannot be written ({reason}); choose another hydra.run.dir"
    return (
        f"{cut(error.filename)}: cannot be written ({reason}); choose another place (for runs: hydra.run.dir)"
    )


def _while_composing(error: BaseException) -> bool:
    """Whether Hydra or OmegaConf, which had a user's text in hand, raised it."""
    trace = error.__traceback__
    if trace is None:
        return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(trace)]
    last = next((n for n in reversed(names) if n.partition(".")[0] in ("hydra", "omegaconf", "fedpriv")), "")
    return last.partition(".")[0] in ("hydra", "omegaconf")


def _from_text(error: BaseException) -> str:
    text = f"{error}\n{error.__cause__ or ''}"
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
    override = re.search(r"(?:override|Error merging override) '?([^'\s]+?)'?\.?(?:\s|$)", text)
    named = override.group(1) if override else None
    if isinstance(cause, ValidationError):
        key = getattr(cause, "full_key", None) or (named or "").partition("=")[0]
        value = re.search(r"Value '(.*?)'(?: of type| is not| could)", str(cause), re.DOTALL)
        if "is not Optional" in str(cause):
            return f"{key}=null: needs a value"
        kind = re.search(r"(?:converted to|not a valid) (\w+)", str(cause))
        other = "a list in brackets" if "is not a ListConfig" in str(cause) else "a single value"
        wanted = _KINDS.get(kind.group(1), kind.group(1)) if kind else other
        given = value.group(1) if value else (named or "").partition("=")[2]
        return f"{key}={cut(given)}: must be {wanted}" if key else f"{_first_line(cause)} {_HINT}"
    if named and ("not in" in text or "No match in the defaults list" in text):
        written = re.search(r"append to your config use \+(\S+)", text)
        return unknown(cut(written.group(1) if written else named.lstrip("+~")))
    key = getattr(cause, "full_key", None)
    first = _first_line(cause or error)
    return f"{key}: {first} {_HINT}" if key and key not in first else f"{first} {_HINT}"


def unknown(override: str) -> str:
    """No such key: what was meant, or what there is."""
    key = override.partition("=")[0].partition(".")[0]
    known = [k for k, _, _ in described()] + list(GROUPS) + ["dp", "agg"]
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "`fedpriv run --help` lists all keys"
    return f"{override}: no such key or group; {hint}"
