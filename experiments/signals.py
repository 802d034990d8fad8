"""SIGINT and SIGTERM end a run after the call that is under way, with all of it saved.

Before and after there is nothing to save, and SIGINT ends a command at once: a KeyboardInterrupt
in the middle of an import is a traceback, an ImportError or, in jaxlib, a crash.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


class Interrupted(KeyboardInterrupt):
    """A run was asked to end and did, its last finished step saved."""

    def __init__(self, number: int):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class Stop:
    """`number` is that of the signal, once there was one."""

    number: int | None = None

    def check(self) -> None:
        """Raises Interrupted if there was a signal."""
        if self.number is not None:
            raise Interrupted(self.number)


def end_at_once() -> None:
    """From now on SIGINT ends the process with one line and status 130."""

    def end(number, frame):
        os.write(2, f"{said(number)}\n".encode())
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)


def said(number: int) -> str:
    """What a command says when a signal ends it."""
    return f"interrupted by {signal.Signals(number).name}; the same command goes on from here"


@contextlib.contextmanager
def listening() -> Iterator[Stop]:
    """Notes the first SIGINT or SIGTERM; the second ends the process at once.

    Outside the main thread, where no handler may be set, it notes nothing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number, frame):
        if stop.number is not None:
            os._exit(128 + number)
        stop.number = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
