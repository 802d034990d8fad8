"""One run, or a comparison of many, in work directories that can be resumed."""

import contextlib
import json
import re
import shutil
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from ml_collections import ConfigDict

from experiments.build import Run, build
from experiments.checkpoint import FOLDER, Checkpoints, groups
from experiments.errors import UserError, at_least, finite
from experiments.loop import train_and_test
from experiments.progress import console, reporter
from experiments.results import (
    Results,
    Row,
    as_dict,
    check_workdir,
    open_workdir,
    without_seeds,
    write_file,
)
from experiments.signals import Stop, listening

TOKENIZER = "tokenizer.json"


def run_one(config: ConfigDict, workdir: Path) -> bool:
    """Runs the seeds that are not finished. True if no seed of the config diverged."""
    run = build(config)
    with listening() as stop, begun(workdir, as_dict(config)):
        return _run(run, config, workdir, f"{run.task} {run.label}", stop)


def run_many(config: ConfigDict, workdir: Path) -> dict[str, str]:
    """Every run of a comparison, by name: "ok", "diverged", or "failed" with the others going on.

    All runs are built, their sizes compared and what is there of them read, before the first one
    starts and anything is written.
    """
    if not config.runs:
        raise UserError("config.runs is empty; a comparison needs runs")
    at_least("config.match_params", config.match_params, 0.0)
    finite("config.match_params", config.match_params)
    runs = {}
    for name, one in config.runs.items():
        check_name(name)
        try:
            runs[name] = build(one)
        except UserError as error:
            raise UserError(f"in config.runs.{name}: {error}") from error
    check_sizes(runs, config.match_params)
    plain = as_dict(config)
    for name, run in runs.items():
        check_workdir(workdir / name, plain["runs"][name])
        with Results(workdir / name, plain["runs"][name], run.task) as results:
            next_group(workdir / name, run.seeds, results.finished)

    outcome = {}
    with listening() as stop, begun(workdir, plain):
        for name in runs:
            open_workdir(workdir / name, plain["runs"][name])
        for name, run in runs.items():
            place = workdir / name
            try:
                with begun(place, plain["runs"][name]):
                    sound = _run(run, config.runs[name], place, f"{run.task} {run.label}", stop)
                outcome[name] = "ok" if sound else "diverged"
            except Exception:  # one failing arm must not take the others with it
                (place / "error.txt").write_text(traceback.format_exc())
                console.print(f"{name} failed; see {place / 'error.txt'}", markup=False)
                outcome[name] = "failed"
    return outcome


def check_name(name: str) -> None:
    """UserError unless a run may have its directory under this name."""
    if not re.fullmatch(r"(?!\.)[^/\\\x00-\x1f]{1,80}", name):
        raise UserError(
            f"config.runs has a run {name!r}; its name is that of its directory in --workdir: "
            "at most 80 characters, no / or \\ or control character, no dot first"
        )


def check_sizes(runs: dict[str, Run], tolerance: float) -> None:
    """UserError unless all runs of a task have parameter counts within `tolerance`."""
    by_task: dict[str, dict[str, int]] = {}
    for name, run in runs.items():
        by_task.setdefault(run.task, {})[name] = run.params
    for sizes in by_task.values():
        small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        if sizes[large] > (1 + tolerance) * sizes[small]:
            raise UserError(
                f"config.runs.{small} has {sizes[small]} parameters and config.runs.{large} "
                f"{sizes[large]}, more than match_params={tolerance} apart; "
                "change model.features of one of them"
            )


def _run(run: Run, config: ConfigDict, workdir: Path, name: str, stop: Stop) -> bool:
    """Runs the groups of seeds that are not finished, each from its newest checkpoint on."""
    plain = as_dict(config)
    if run.tokenizer is not None:  # generation needs no more than the run directory
        write_file(workdir / TOKENIZER, json.dumps(run.tokenizer.to_json()) + "\n")
    ran = False
    with Results(workdir, plain, run.task) as results:
        results.check_chance(run.source.chance(run.source.lengths[0]))
        while seeds := next_group(workdir, run.seeds, results.finished):
            ran = True
            (workdir / "error.txt").unlink(missing_ok=True)
            with (
                checkpoints(workdir, seeds, run, plain) as saved,
                reporter(name, run.steps) as show,
            ):
                train_and_test(run, seeds, results, show, saved, stop)
        if not ran:
            console.print(f"{name}  finished before", markup=False)
        return all(results.finished[seed] != "diverged" for seed in run.seeds)


@contextlib.contextmanager
def begun(workdir: Path, config: Row) -> Iterator[None]:
    """An open work directory that no other process has; nothing is written there before that is
    sure. A new one goes again if an error comes before the first row or checkpoint does.

    Raises UserError for a directory in use, of another config, or that cannot be written.
    """
    check_workdir(workdir, config)
    new = not workdir.exists()
    lock = FileLock(workdir / ".lock")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"--workdir={workdir} is in use by another process; wait, or choose another --workdir"
        ) from None
    except OSError as error:
        raise UserError(f"--workdir={workdir}: {error.strerror or error}") from error
    try:
        open_workdir(workdir, config)
        yield
    except Exception:  # an interruption is none
        rows = any(path.stat().st_size for path in workdir.rglob("results.jsonl"))
        if new and not rows and not any(workdir.rglob(f"{FOLDER}/*/[0-9]*")):
            shutil.rmtree(workdir)
        raise
    finally:
        lock.release()


def next_group(workdir: Path, wanted: tuple[int, ...], finished: Iterable[int]) -> tuple[int, ...]:
    """Seeds to run together: those of a checkpoint that are not all finished, else all missing.

    Empty if none is missing. Raises UserError if an unfinished group has seeds that are not
    `wanted`: it could not go on as it began.
    """
    for group in groups(workdir):
        if not set(group) <= set(finished):
            if not set(group) <= set(wanted):
                raise UserError(
                    f"--workdir={workdir} has an unfinished run of seeds {list(group)}; ask for "
                    "at least those with config.train.seed and seeds, or choose another --workdir"
                )
            return group
    return tuple(seed for seed in wanted if seed not in finished)


@contextlib.contextmanager
def checkpoints(
    workdir: Path, seeds: tuple[int, ...], run: Run, config: Row
) -> Iterator[Checkpoints]:
    saved = Checkpoints(
        workdir,
        seeds,
        without_seeds(config),
        seconds=run.save_seconds,
        keep=run.keep,
    )
    try:
        yield saved
    finally:
        saved.close()
