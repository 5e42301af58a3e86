"""The exceptions a user may meet; the command line prints their one line without a traceback."""


class UserError(Exception):
    """A mistake in the request or its surroundings: what is wrong, where, and what to do."""


class Interrupted(Exception):
    """Ctrl-C: everything is saved; the message says how to go on."""
