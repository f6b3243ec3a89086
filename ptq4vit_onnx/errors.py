"""The two errors that callers are meant to catch."""

_TORCH_OUT_OF_MEMORY = "can't allocate memory"  # in the RuntimeError that torch raises


class UserError(Exception):
    """A mistake the user can mend: one line that says what, where, expected and got, and what to do next.

    The command line prints the line and exits with 2. Nothing has been written under a final name.
    """


def one_line(error: BaseException) -> str:
    """What an error of a library says, as a part of a UserError's line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or _TORCH_OUT_OF_MEMORY in str(error)


class ParityError(Exception):
    """A model that was built does not compute what was promised. The command line exits with 1."""
