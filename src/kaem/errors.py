"""The one exception that means "the user can fix this": what was got, expected, and to do next."""


class UserError(ValueError):
    """A mistake in input, settings or files. The command line prints it and exits with code 2."""


# What reading a damaged JSON or TOML file raises; the last where it is nested too deeply.
UNREADABLE = (OSError, ValueError, RecursionError)
