"""Progress on the terminal: a live bar where there is one, plain lines elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.errors import CLOSED


class Terminal(Console):
    """rich, but for the exit status where nobody reads its output any more: CLOSED, not 1."""

    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(CLOSED) from None


console = Terminal(highlight=False, soft_wrap=True)


class Reporter:
    """Shows how far a run is; `update` is called after every validation."""

    def __init__(self, name: str, steps: int, bar: Progress | None):
        self.name, self.steps, self.bar = name, steps, bar
        self.task = None if bar is None else bar.add_task(name, total=steps, note="compiling")
        self.last_tenth = -1

    def resume(self, step: int) -> None:
        console.print(f"{self.name}  goes on at step {step}/{self.steps}", markup=False)
        if self.task is not None and self.bar is not None:
            self.bar.update(self.task, completed=step)

    def update(self, step: int, note: str) -> None:
        if self.task is not None and self.bar is not None:
            self.bar.update(self.task, completed=step, note=note)
            return
        tenth = 10 * step // self.steps
        if tenth > self.last_tenth:  # at most eleven lines a run
            self.last_tenth = tenth
            console.print(f"{self.name}  step {step}/{self.steps}  {note}", markup=False)

    def finish(self, note: str) -> None:
        if self.task is not None and self.bar is not None:
            self.bar.remove_task(self.task)
        console.print(f"{self.name}  {note}", markup=False)


@contextlib.contextmanager
def reporter(name: str, steps: int) -> Iterator[Reporter]:
    if not console.is_terminal:
        yield Reporter(name, steps, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Reporter(name, steps, bar)
