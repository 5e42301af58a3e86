"""The exceptions a user may meet; the command line prints their one line without a traceback."""

import math


class UserError(Exception):
    """A mistake in the request or its surroundings: what is wrong, where, and what to do."""


class Interrupted(Exception):
    """Ctrl-C: everything is saved; the message says how to go on."""


def positive(group: str, words: str = "must be positive", /, **values: float | None) -> None:
    """Refuse an option of `group` ("": at the top) that is no finite number above zero; None: not given."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            wrong = words if math.isfinite(value) else "must be a finite number"
            raise UserError(f"{group}{'.' if group else ''}{name}={value:g}: {wrong}")
