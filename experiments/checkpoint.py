"""Saves what a run needs to go on as if nothing had happened, and reads it back, or says why not.

A checkpoint holds one program's seeds: every leaf of their training state as a NumPy array, by
its path, and the host's own notes as JSON (`notes`, with the config, the seeds, the tree's
structure and a digest of all leaves). No device is named in it, so it restores on any.

Orbax casts dtypes without a word, names no path where shapes differ, and offers a damaged step as
the latest; all of that is checked here.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from experiments.progress import console
from experiments.results import Row, difference

FOLDER = "checkpoints"


class Damaged(Exception):
    """A checkpoint whose files are not what was written."""


class Checkpoints:
    """Those of one group of seeds, in `workdir`/checkpoints/seeds_0_1_2/STEP.

    seconds  between two saves, more or less; 0: one is always due
    keep     how many of the newest stay
    """

    def __init__(
        self,
        workdir: Path,
        seeds: tuple[int, ...],
        config: Row,
        *,
        seconds: float = 0.0,
        keep: int = 1,
    ):
        import orbax.checkpoint as ocp
        from orbax.checkpoint import checkpoint_managers as policies

        self.directory, self.seeds, self.config = place(workdir, seeds), seeds, config
        self._seconds, self._last = seconds, time.monotonic()
        self._ocp = ocp
        try:
            self._manager = ocp.CheckpointManager(
                self.directory.absolute(),
                item_handlers=_handlers(),
                options=ocp.CheckpointManagerOptions(
                    # Of the best parameters the training state has a copy (`selection.Best`).
                    preservation_policy=policies.LatestN(keep),
                    cleanup_tmp_directories=True,
                ),
            )
        except OSError as error:
            raise UserError(f"{self.directory}: {error.strerror or error}") from error

    def due(self) -> bool:
        """Whether the last save, or the start, is long enough ago."""
        return time.monotonic() - self._last >= self._seconds

    def save(
        self,
        step: int,
        state: Any,
        notes: Callable[[], Row],
    ) -> None:
        """Saves in the background; a step once saved is not again."""
        self._last = time.monotonic()
        if self._manager.latest_step() == step:
            return
        leaves, structure = flatten(state)
        everything = {
            **notes(),
            "config": self.config,
            "seeds": list(self.seeds),
            "structure": structure,
            "digest": digest(leaves),
        }
        args = self._ocp.args
        try:
            self._manager.save(
                step,
                args=args.Composite(
                    state=args.StandardSave(leaves), notes=args.JsonSave(everything)
                ),
                force=True,  # when to is not orbax's to decide
            )
        except (OSError, ValueError) as error:
            raise UserError(f"{self.directory}: step {step} was not saved: {error}") from error

    def restore(self, like: Any) -> tuple[Any, Row] | None:
        """(state, notes) of the newest sound checkpoint, or None where there is none.

        like: a state of the same run; shapes suffice. A damaged checkpoint is set aside, loudly,
        for the one before. Raises UserError, naming the leaf or the field, for one of another
        config or whose leaves are not exactly those of `like`.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                leaves, notes = read(self.directory, step)
            except Damaged as error:
                aside = self.directory.parent / "damaged" / f"{self.directory.name}_{step}"
                console.print(f"{error}; set aside as {aside}", markup=False, style="red")
                aside.parent.mkdir(exist_ok=True)
                shutil.rmtree(aside, ignore_errors=True)
                shutil.move(self.directory / str(step), aside)
                self._manager.reload()
                continue
            if notes["config"] != self.config:
                where = difference(notes["config"], self.config)
                raise UserError(f"{self.directory}/{step} is of another config{where}")
            return unflatten(leaves, notes["structure"], like, f"{self.directory}/{step}"), notes
        damaged = self.directory.parent / "damaged"
        if any(damaged.glob(f"{self.directory.name}_[0-9]*")):
            raise UserError(
                f"{self.directory}: every checkpoint is damaged; choose another --workdir"
            )
        return None

    def close(self) -> None:
        """Waits until all is on disk. Raises UserError if a save failed in the background."""
        try:
            self._manager.wait_until_finished()
            self._manager.close()
        except Exception as error:
            raise UserError(f"{self.directory}: the last save failed: {error}") from error


def place(workdir: Path, seeds: tuple[int, ...]) -> Path:
    return workdir / FOLDER / "_".join(["seeds", *map(str, seeds)])


def groups(workdir: Path) -> list[tuple[int, ...]]:
    """The groups of seeds that have a checkpoint, in the order of their seeds."""
    steps = (workdir / FOLDER).glob("seeds_*/[0-9]*")
    found = {path.parent.name for path in steps}
    return sorted(tuple(int(seed) for seed in name.split("_")[1:]) for name in found)


def newest(directory: Path) -> int | None:
    """The last step that was saved here."""
    import orbax.checkpoint as ocp

    return max(ocp.utils.checkpoint_steps(directory), default=None) if directory.exists() else None


def read(directory: Path, step: int) -> tuple[dict[str, np.ndarray], Row]:
    """Leaves by path, and notes. Raises Damaged unless they are what was saved.

    Without a manager: nothing is written or tidied up, since another process may be at work here.
    """
    import orbax.checkpoint as ocp

    where = directory / str(step)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(), notes=ocp.args.JsonRestore())
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**_handlers())) as reader:
            found = reader.restore(where.absolute(), args=args)
        leaves = {name: np.asarray(leaf) for name, leaf in found["state"].items()}
        notes = found["notes"]
        sound = digest(leaves) == notes["digest"]
    except Exception as error:  # whatever a reader may say of files that are not its own
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise Damaged(f"checkpoint {where} is damaged ({text[0][:200]})") from error
    if not sound:
        raise Damaged(f"checkpoint {where} is damaged (its digest differs)")
    return leaves, notes


def flatten(state: Any) -> tuple[dict[str, np.ndarray], str]:
    """Leaves on the host by path, keys as their raw data, and the structure of the tree."""
    leaves = {}
    structure = [str(jax.tree.structure(state))]
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if _is_key(leaf):
            structure.append(f"{name(path)}: {jax.random.key_impl(leaf)}")
            leaf = jax.random.key_data(leaf)
        leaves[name(path)] = np.asarray(jax.device_get(leaf))
    return leaves, "; ".join(structure)


def unflatten(leaves: dict[str, np.ndarray], structure: str, like: Any, where: str) -> Any:
    """A tree like `like` with these leaves. UserError, with the path, unless all fit exactly."""
    wanted = dict((name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(like))
    for path in [*wanted, *leaves]:
        if path not in leaves:
            raise UserError(f"{where}: leaf {path} is missing")
        if path not in wanted:
            raise UserError(f"{where}: leaf {path} is not one of this run's")
        leaf = wanted[path]
        if _is_key(leaf):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        here, there = (f"{a.dtype}{list(a.shape)}" for a in (leaf, leaves[path]))
        if here != there:
            raise UserError(f"{where}: leaf {path} is {there} there and {here} here")
    if structure != (here := describe(like)):
        raise UserError(f"{where}: the state is built otherwise: {_first_other(structure, here)}")
    found = [
        jax.random.wrap_key_data(jnp.asarray(leaves[path]), impl=_impl(leaf))
        if _is_key(leaf)
        else leaves[path]
        for path, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def describe(state: Any) -> str:
    """The structure that `flatten` gives, from shapes."""
    keys = [
        f"{name(path)}: {_impl(leaf)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if _is_key(leaf)
    ]
    return "; ".join([str(jax.tree.structure(state)), *keys])


def digest(leaves: dict[str, np.ndarray]) -> str:
    """SHA-256 of all leaves, names, dtypes and shapes."""
    total = hashlib.sha256()
    for path in sorted(leaves):
        leaf = np.ascontiguousarray(leaves[path])
        total.update(f"{path} {leaf.dtype} {leaves[path].shape} ".encode())
        total.update(leaf.tobytes())
    return total.hexdigest()


def name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _handlers() -> dict[str, Any]:
    import orbax.checkpoint as ocp

    return {"state": ocp.StandardCheckpointHandler(), "notes": ocp.JsonCheckpointHandler()}


def _is_key(leaf):
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _impl(leaf):
    return jax.random.key_impl(leaf) if isinstance(leaf, jax.Array) else leaf.dtype._impl.name


def _first_other(one: str, other: str) -> str:
    """What stands where two texts begin to differ."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"{one[max(0, at - 30) : at + 30]!r} there and {other[max(0, at - 30) : at + 30]!r} here"
