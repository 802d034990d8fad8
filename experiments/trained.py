"""Reads a run directory back: its config, and the parameters that its test used."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.build import Run, build
from experiments.checkpoint import Damaged, groups, newest, place, read
from experiments.errors import UserError
from experiments.results import Row, difference, saved_config, without_seeds
from seqmodels.training.state import DIVERGED


def read_config(workdir: Path) -> ConfigDict:
    """The config of one run. Raises UserError where there is none."""
    config = saved_config(workdir)
    if "runs" in config:
        names = ", ".join(config["runs"])
        raise UserError(f"--workdir={workdir} is a comparison; choose one run in it: {names}")
    return ConfigDict(_tuples(config))


def rebuild(workdir: Path, config: ConfigDict) -> Run:
    """`build` of a config that another version may have written; a UserError names its file."""
    with blame_config(workdir):
        return build(config)


@contextlib.contextmanager
def blame_config(workdir: Path) -> Iterator[None]:
    """Names the file in the place of the command line, where a field of its config is at fault."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{workdir}/config.json: {error}") from error


class Trained(NamedTuple):
    """What a checkpoint has of one seed.

    params    as nested dicts of arrays
    step      of the checkpoint
    diverged  whether the seed had stopped for losses or gradients that were not finite
    """

    params: Row
    seed: int
    step: int
    diverged: bool


def read_params(workdir: Path, config: ConfigDict, seed: int | None) -> Trained:
    """Parameters of one seed, from its newest checkpoint.

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
    wanted, directory = without_seeds(saved_config(workdir)), place(workdir, group)
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
    status = leaves["status"][group.index(seed)]
    return Trained(params, seed, step, diverged=bool(status == DIVERGED))


def _tuples(value: Any) -> Any:
    """JSON has lists where configs have tuples."""
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
