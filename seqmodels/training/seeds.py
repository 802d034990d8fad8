"""Several seeds in one program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from seqmodels.training.state import TrainState
from seqmodels.types import Batch


def seed_mesh(seeds: int, shards: int = 1) -> Mesh:
    """A mesh over ("seed", "data") of this process's devices: at most `shards` of them share each
    batch, and at most one such group stands for each seed."""
    devices = jax.local_devices()
    data = min(max(1, shards), len(devices))
    seed = min(max(1, seeds), len(devices) // data)
    shape = (seed, data)
    chosen = np.reshape(devices[: seed * data], shape)
    return Mesh(chosen, ("seed", "data"), axis_types=(AxisType.Auto,) * 2)


def padded(seeds: int, mesh: Mesh) -> int:
    """The number of seeds rounded up to a multiple of the mesh's seed axis."""
    return -(-seeds // mesh.shape["seed"]) * mesh.shape["seed"]


def by_seed(mesh: Mesh) -> NamedSharding:
    """Where leaves with a leading seed axis live."""
    return NamedSharding(mesh, P("seed"))


def shard(tree: Any, mesh: Mesh) -> Any:
    """Puts leaves with a leading seed axis on their devices."""
    return jax.device_put(tree, by_seed(mesh))


def typed(tree: Any, mesh: Mesh) -> Any:
    """Shapes of leaves with a leading seed axis, with the sharding that `shard` gives them."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=by_seed(mesh)), tree
    )


def trim(state: TrainState, seeds: int, rows: int) -> TrainState:
    """Without the seeds and rows of a carry that only fill up devices: so many are real."""

    def cut(leaf):
        return leaf if len(leaf) == seeds else leaf[:seeds]

    def cut_rows(leaf):
        return leaf if leaf.shape[1] == rows else leaf[:, :rows]

    return jax.tree.map(cut, state.replace(carry=jax.tree.map(cut_rows, state.carry)))


def fill(state: TrainState, start: TrainState) -> TrainState:
    """A trimmed state, whose leaves are NumPy arrays or keys, filled up with what `start` has."""

    def leaf(saved, fresh):
        if saved.shape == fresh.shape:
            return saved
        if jax.dtypes.issubdtype(fresh.dtype, jax.dtypes.prng_key):
            data = leaf(*(np.asarray(jax.random.key_data(keys)) for keys in (saved, fresh)))
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(fresh))
        whole = np.array(fresh)
        whole[tuple(map(slice, saved.shape))] = saved
        return whole

    return jax.tree.map(leaf, state, start)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Puts a copy of every leaf on every device, for all seeds to read."""
    return jax.device_put(tree, NamedSharding(mesh, P()))


def for_each_seed(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`function(shared, *own)` for every seed; the result takes the same arguments.

    Leaves of `own` have a leading seed axis, `shared` is read by all. Seeds are spread over the
    mesh and never speak to each other. On a CPU a device walks through its seeds one by one,
    which costs nothing for a stopped one and keeps each one's arrays in the cache; an accelerator
    runs its seeds together, by vmap.
    """
    together = mesh.devices.flat[0].platform != "cpu"

    def local(shared, *own):
        if together:
            return jax.vmap(lambda args: function(shared, *args))(own)
        return jax.lax.map(lambda args: function(shared, *args), own)

    def mapped(shared, *own):
        specs = (P(), *(P("seed") for _ in own))
        # The axis "data" is left to the compiler, which places the sums over rows outside loops.
        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=specs,
            out_specs=P("seed"),
            check_vma=False,
            axis_names={"seed", "data"} if mesh.shape["data"] == 1 else {"seed"},
        )(shared, *own)

    return mapped


def over_devices(draw: Callable[..., Batch], mesh: Mesh) -> Callable[..., Batch]:
    """`draw` with the rows of each batch spread over the mesh's axis "data".

    Rows that do not divide are followed by masked ones without weight. All draws, dropout's too,
    are those of one device; only the order of sums differs.
    """
    devices = mesh.shape["data"]
    if devices == 1:
        return draw

    def spread(leaf):
        here = NamedSharding(jax.sharding.get_abstract_mesh(), P("data"))
        return jax.lax.with_sharding_constraint(pad_rows(leaf, devices), here)

    return lambda *args: jax.tree.map(spread, draw(*args))


def pad_rows(leaf: jax.Array, multiple: int) -> jax.Array:
    """`leaf` [B, ...] with zeros up to a multiple of so many rows."""
    return jnp.pad(leaf, [(0, -leaf.shape[0] % multiple)] + [(0, 0)] * (leaf.ndim - 1))
