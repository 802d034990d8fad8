"""Errors that are the user's to mend: one line on the terminal, exit status 2."""

import contextlib
import difflib
import math
from collections.abc import Iterable, Iterator

CLOSED = 141
"""Exit status when standard output was closed, as that of a process which SIGPIPE ends."""

SMALLER = (
    "make config.model.features or layers, config.train.batch, seeds, accumulate or "
    "steps_per_call, config.eval.batch, or the lengths, chunk or buckets smaller"
)
"""What to do where memory is short."""


class UserError(Exception):
    """What was given, what is allowed, which field to change."""


@contextlib.contextmanager
def blame(field: str) -> Iterator[None]:
    """Turns a ValueError or OSError of the library into a UserError that names the field."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(f"{field}: {error}") from error


def one_of(field: str, value: str, allowed: Iterable[str]) -> None:
    """UserError with the nearest name unless `value` is among `allowed`."""
    names = [*allowed]
    if value in names:
        return
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{field}={value!r} is unknown{hint} (allowed: {', '.join(names)})")


def at_least(field: str, value: float | None, least: float) -> None:
    """UserError unless value >= least; whole numbers must also be below 2^31, to be counted."""
    if value is None:
        raise UserError(f"{field}=None must be a number of at least {least}")
    if isinstance(value, int) and value >= 2**31:
        raise UserError(f"{field}={value} must be below 2^31")
    if not value >= least:
        raise UserError(f"{field}={value} must be at least {least}")


def finite(field: str, value: float | None) -> None:
    """UserError for NaN or an infinity."""
    if value is not None and not math.isfinite(value):
        raise UserError(f"{field}={value} must be finite")


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turns what an allocation raises, on the host or a device, into a UserError."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        # XLA's own class is known by its text: this file does without JAX.
        if isinstance(error, RuntimeError) and not said.startswith("RESOURCE_EXHAUSTED"):
            raise
        said = said.removeprefix("RESOURCE_EXHAUSTED: ")
        raise UserError(f"not enough memory ({said}); {SMALLER}") from error
