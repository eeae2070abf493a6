"""The one exception that means "the user can fix this": what was got, expected, and to do next."""


class UserError(ValueError):
    """A mistake in input, settings or files. The command line prints it and exits with code 2."""


def brief(value: object, most: int = 80) -> str:
    """Return a value as an error shows it: of a long one, the beginning."""
    try:
        text = repr(value[:most] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists within lists
        return f"a very long {type(value).__name__}"
    long = len(text) > most or (isinstance(value, str) and len(value) > most)
    return f"{text[:most]}..." if long else text


def printable(text: str) -> str:
    """Return text without what a terminal would obey: names and texts of files may hold anything."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


# What reading a damaged JSON or TOML file raises; the last where it is nested too deeply.
UNREADABLE = (OSError, ValueError, RecursionError)
