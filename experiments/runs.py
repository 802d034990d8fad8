"""One run, or a comparison of many, in work directories that can be resumed."""

import traceback
from pathlib import Path

from ml_collections import ConfigDict

from experiments.build import Run, build
from experiments.errors import UserError
from experiments.loop import train_and_test
from experiments.progress import console, reporter
from experiments.results import Results, as_dict, open_workdir, without_seeds


def run_one(config: ConfigDict, workdir: Path) -> bool:
    """Runs the seeds that are not finished. True if no seed of the config diverged."""
    run = build(config)
    open_workdir(workdir, as_dict(config), without_seeds)
    return _run(run, config, workdir, f"{run.task} {run.label}")


def run_many(config: ConfigDict, workdir: Path) -> dict[str, str]:
    """Every run of a comparison, by name: "ok", "diverged", or "failed" with the others going on.

    All runs are built, and their sizes compared, before the first one starts.
    """
    if not config.runs:
        raise UserError("config.runs is empty; a comparison needs runs")
    runs = {}
    for name, one in config.runs.items():
        try:
            runs[name] = build(one)
        except UserError as error:
            raise UserError(f"in config.runs.{name}: {error}") from error
    check_sizes(runs, config.match_params)
    plain = as_dict(config)
    open_workdir(workdir, plain, without_seeds)
    for name in runs:
        open_workdir(workdir / name, plain["runs"][name], without_seeds)

    outcome = {}
    for name, run in runs.items():
        place = workdir / name
        try:
            sound = _run(run, config.runs[name], place, f"{run.task} {run.label}")
            outcome[name] = "ok" if sound else "diverged"
        except Exception:  # one failing arm must not take the others with it
            (place / "error.txt").write_text(traceback.format_exc())
            console.print(f"{name} failed; see {place / 'error.txt'}", markup=False)
            outcome[name] = "failed"
    return outcome


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


def _run(run: Run, config: ConfigDict, workdir: Path, name: str) -> bool:
    results = Results(workdir, as_dict(config), run.task)
    seeds = tuple(seed for seed in run.seeds if seed not in results.finished)
    if seeds:
        (workdir / "error.txt").unlink(missing_ok=True)
        with results.appending(), reporter(name, run.steps) as show:
            train_and_test(run, seeds, results, show)
    else:
        console.print(f"{name}  finished before", markup=False)
    return all(results.finished[seed] != "diverged" for seed in run.seeds)
