"""Reads a run directory back: its config, and the parameters that its test used."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.build import Run, build
from experiments.checkpoint import Damaged, groups, newest, place, read
from experiments.errors import UserError
from experiments.results import Row, difference, without_seeds


def read_config(workdir: Path) -> ConfigDict:
    """The config of one run. Raises UserError where there is none."""
    path = workdir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--workdir={workdir} holds no run ({error.strerror})") from None
    except ValueError:
        raise UserError(f"{path} is not JSON; choose another --workdir") from None
    if not isinstance(config, dict) or not {"train", "runs"} & {*config}:
        raise UserError(f"{path} is no config of a run; choose another --workdir")
    if "runs" in config:
        names = ", ".join(config["runs"])
        raise UserError(f"--workdir={workdir} is a comparison; choose one run in it: {names}")
    return ConfigDict(_tuples(config))


def rebuild(workdir: Path, config: ConfigDict) -> Run:
    """`build` of a config that may have been written by another version; UserError says so."""
    with of_this_version(workdir):
        return build(config)


@contextlib.contextmanager
def of_this_version(workdir: Path) -> Iterator[None]:
    """UserError in the place of what a config raises that lacks a field or has one too many."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:  # as ConfigDict and optimizers do
        text = str(error.args[0] if error.args else error).splitlines()[0].strip('"')
        raise UserError(
            f"{workdir}/config.json was written by another version ({type(error).__name__}: "
            f"{text}); train it again with this one"
        ) from error


def read_params(workdir: Path, config: ConfigDict, seed: int | None) -> tuple[Row, int, int]:
    """Parameters of one seed as nested dicts, the seed, and the step of their checkpoint.

    The best on validation, the average or the last, as the config says for its test; `seed` None
    is the first that there is. Raises UserError where there is no sound checkpoint of it, or it is
    of another config than config.json.
    """
    known = sorted(seed for group in groups(workdir) for seed in group)
    if not known:
        raise UserError(f"--workdir={workdir} has no checkpoint; train it first")
    there = [group for group in groups(workdir) if seed is None or seed in group]
    if not there:
        raise UserError(f"--run_seed={seed} has no checkpoint in {workdir} (there are: {known})")
    group = there[0]
    seed = group[0] if seed is None else seed
    plain = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    wanted, directory = without_seeds(plain), place(workdir, group)
    step = newest(directory)
    if step is None:
        raise UserError(f"{directory} has no checkpoint yet")
    try:
        leaves, notes = read(directory, step)
    except Damaged as error:
        raise UserError(str(error)) from None
    if notes["config"] != wanted:
        where = difference(notes["config"], wanted)
        raise UserError(f"{workdir}/config.json is not that of its checkpoint{where}")
    kind = "best.params" if config.train.test == "best" else "params"
    if kind == "params" and config.train.average:
        kind = "average"
    params: Row = {}
    for path, leaf in leaves.items():
        if path.startswith(f"{kind}."):
            *branches, last = path.removeprefix(f"{kind}.").split(".")
            inside: Any = params
            for branch in branches:
                inside = inside.setdefault(branch, {})
            inside[last] = np.asarray(leaf[group.index(seed)])
    return params, seed, step


def _tuples(value: Any) -> Any:
    """JSON has lists where configs have tuples."""
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
