"""Several seeds in one program."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def seed_mesh(seeds: int) -> Mesh:
    """A mesh over ("seed", "data"): as many of this process's devices as there are seeds."""
    devices = jax.local_devices()[: max(1, seeds)]
    shape = (len(devices), 1)
    return Mesh(np.reshape(devices, shape), ("seed", "data"), axis_types=(AxisType.Auto,) * 2)


def padded(seeds: int, mesh: Mesh) -> int:
    """The number of seeds rounded up to a multiple of the mesh's seed axis."""
    return -(-seeds // mesh.shape["seed"]) * mesh.shape["seed"]


def shard(tree: Any, mesh: Mesh) -> Any:
    """Puts leaves with a leading seed axis on their devices."""
    return jax.device_put(tree, NamedSharding(mesh, P("seed")))


def typed(tree: Any, mesh: Mesh) -> Any:
    """Shapes of leaves with a leading seed axis, with the sharding that `shard` gives them."""
    sharding = NamedSharding(mesh, P("seed"))
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


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
        return jax.shard_map(
            local, mesh=mesh, in_specs=specs, out_specs=P("seed"), check_vma=False
        )(shared, *own)

    return mapped
