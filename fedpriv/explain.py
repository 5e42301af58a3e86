"""One line instead of a traceback, for the mistakes Hydra and OmegaConf find in a command line."""

import difflib
import errno
import re
from importlib.resources import files

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException, ValidationError

from fedpriv.config import GROUPS, described
from fedpriv.errors import UserError

_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


def explain(error: BaseException) -> str | None:
    """What is wrong and what is allowed; None where the error is not the user's."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.partition("/")
        if error.options:
            return f"{group}={option}: no such option; choose one of {', '.join(sorted(error.options))}"
    if isinstance(error, OSError) and error.errno in _FILES:
        return f"{error.filename}: cannot be written ({error.strerror}); choose another hydra.run.dir"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({str(error).splitlines()[0]}); quote brackets in the shell"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _from_text(error)
    return None


def _from_text(error: BaseException) -> str:
    text = f"{error}\n{error.__cause__ or ''}"
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
    override = re.search(r"(?:override|Error merging override) '?([^'\s]+?)'?\.?(?:\s|$)", text)
    named = override.group(1) if override else None
    if isinstance(cause, ValidationError):
        key = getattr(cause, "full_key", None) or (named or "").partition("=")[0]
        value = re.search(r"Value '([^']*)'", str(cause))
        kind = re.search(r"(?:converted to|not a valid) (\w+)", str(cause))
        other = "a list in brackets" if "is not a ListConfig" in str(cause) else "of another type"
        wanted = _KINDS.get(kind.group(1), kind.group(1)) if kind else other
        given = value.group(1) if value else (named or "").partition("=")[2] or "?"
        return f"{key}={given}: must be {wanted}"
    if named and ("not in" in text or "No match in the defaults list" in text):
        written = re.search(r"append to your config use \+(\S+)", text)
        return _unknown(written.group(1) if written else named.lstrip("+~"))
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return f"{first} (in the command line; `fedpriv run --help` shows the form)"


def _unknown(override: str) -> str:
    """No such key: what was meant, or what there is."""
    key = override.partition("=")[0]
    group, _, option = key.partition(".")
    if group in GROUPS and option:
        allowed = sorted(_options_of(group))
        near = difflib.get_close_matches(option, allowed, n=1, cutoff=0.6)
        hint = f"did you mean {group}.{near[0]}? " if near else ""
        listed = ", ".join(allowed)
        return f"{override}: no such option of the chosen {group}; {hint}options of {group}: {listed}"
    known = [k for k, _, _ in described()] + list(GROUPS) + ["dp", "agg"]
    near = difflib.get_close_matches(group, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "`fedpriv run --help` lists all keys"
    return f"{override}: no such key or group; {hint}"


def _options_of(group: str) -> set[str]:
    """The keys of all options of a group."""
    folder = files("fedpriv.conf").joinpath(group)
    texts = [e.read_text() for e in folder.iterdir() if e.name.endswith(".yaml")]
    return {k for text in texts for k in re.findall(r"^\s*(\w+):", text, re.MULTILINE)} - {"_target_", group}
