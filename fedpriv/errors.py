"""The one exception a user may meet: a single line that says what is wrong, where, and what to do."""


class UserError(Exception):
    """A mistake in the request or its surroundings; the command line prints it without a traceback."""
