"""One line instead of a traceback, for the mistakes Hydra and OmegaConf find in a command line."""

import difflib
import re

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException, ValidationError

from fedpriv.config import GROUPS, described
from fedpriv.errors import UserError

_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}


def explain(error: BaseException) -> str | None:
    """What is wrong and what is allowed; None where the error is not the user's."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.partition("/")
        if error.options:
            return f"{group}={option}: no such option; choose one of {', '.join(sorted(error.options))}"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _from_text(error)
    return None


def _from_text(error: BaseException) -> str:
    text = str(error)
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
    override = re.search(r"(?:override|Error merging override) '?([^'\s]+?)'?\.?(?:\s|$)", text)
    named = override.group(1) if override else None
    if isinstance(cause, ValidationError):
        key = getattr(cause, "full_key", None) or (named or "").partition("=")[0]
        value = re.search(r"Value '([^']*)'", str(cause))
        kind = re.search(r"converted to (\w+)", str(cause))
        wanted = _KINDS.get(kind.group(1), kind.group(1)) if kind else "of another type"
        return f"{key}={value.group(1) if value else '?'}: must be {wanted}"
    if named and ("not in" in text or "No match in the defaults list" in text):
        return _unknown(named.lstrip("+~").partition("=")[0])
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return f"{first} (in the command line; `fedpriv run --help` shows the form)"


def _unknown(key: str) -> str:
    known = [k for k, _, _ in described()] + list(GROUPS) + ["dp", "agg"]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    if "." in key:
        group = key.split(".")[0]
        return f"{key}: no such key; `fedpriv run {group}=OPTION --cfg job` shows what {group} has"
    hint = f"did you mean {' or '.join(near)}?" if near else "`fedpriv run --help` lists all keys"
    return f"{key}: no such key or group; {hint}"
