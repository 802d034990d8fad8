"""`run` under vmap, shard_map and explicit meshes: the numbers of one device, and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from table import (
    ALL,
    BATCH,
    assert_close,
    compiled,
    cotangents_of,
    data_of,
    jit,
    noise_key,
    run_with_gradients,
)

from seqmodels import recurrence

CELLS = {name: entry.cell for name, entry in ALL.items()}
both = pytest.mark.parametrize("implementation", table.IMPLEMENTATIONS)


def ways(rows, names, first, *others):
    """Each of `rows` (`table.cells`, `table.runs`) in the `first` way; SAMPLE, among the slow, in
    the others too. Which way the loop runs is not the cell's to know, and each costs seconds."""
    arguments, params = rows.args
    named = [
        pytest.param(*row.values, *way, id=f"{row.id}, {way}", marks=marks)
        for row in params
        for way, marks in [(first, row.marks), *((other, pytest.mark.slow) for other in others)]
        if way == first or row.id.removesuffix(", noise") in table.SAMPLE
    ]
    return pytest.mark.parametrize(f"{arguments}, {names}", named)


def mesh_of(kind):
    return jax.make_mesh((2,), ("data",), axis_types=(kind,))


def program(cell, implementation, key=None, **options):
    """Loss and outputs of one batch from a given carry and, for cells with a learned one, from
    none. The outputs are what tests compare: the loss is a sum that cancels, and in float32 the
    order of its terms shows."""
    key = None if key is None else noise_key(key)

    def loss(params, x, carry, mask, reset, weights):
        flags = {"mask": mask, "reset": reset, "implementation": implementation, "key": key}
        out = recurrence.run(cell, params, x, carry, **flags, **options)
        if "start" in params or implementation == "reference":
            fresh, _ = recurrence.run(cell, params, x, **flags, reverse=True)
            out, weights = (*out, fresh), (*weights, weights[0])
        products = jax.tree.map(lambda a, w: jnp.sum(a * w), out, weights)
        return sum(jax.tree.leaves(products)), out

    return loss


def arguments(cell):
    data = data_of(cell, np.float32)
    return data.params, (*data[1:], cotangents_of(cell, data))


@functools.cache
def on_one_device(cell, implementation, key=None):
    """(outputs, gradients)."""
    step = jax.grad(program(cell, implementation, key), (0, 1, 2), has_aux=True)
    params, rows = arguments(cell)
    gradients, out = jax.device_get(jit(step)(params, *rows))
    return out, gradients


@ways(table.cells(ALL, costly=True), "implementation", ("fused",), ("reference",))
def test_shard_map_over_the_batch(cell, implementation):
    """Parameters are the same on all devices, rows are not: gradients must come out summed."""
    loss, (params, rows) = program(cell, implementation), arguments(cell)

    def shard(params, x, carry, *rest):
        def total(*arguments):
            value, out = loss(*arguments, *rest)
            return jax.lax.psum(value, "data"), out

        gradients, out = jax.grad(total, (0, 1, 2), has_aux=True)(params, x, carry)
        return out, gradients

    sharded = jax.shard_map(
        shard,
        mesh=mesh_of(AxisType.Auto),
        in_specs=(P(), *[P("data")] * len(rows)),
        out_specs=(P("data"), (P(), P("data"), P("data"))),
        check_vma=True,
    )
    assert_close(jit(sharded)(params, *rows), on_one_device(cell, implementation), 1e-5)


@both
def test_shard_map_over_the_parameters(implementation):
    """One model on each device, all reading the same rows: here x alone varies over nothing."""
    cell = CELLS["lstm"]
    params = [data_of(cell, np.float32, seed=seed).params for seed in (0, 10)]
    x, mesh = data_of(cell, np.float32).x, mesh_of(AxisType.Auto)

    def slope(params):
        def loss(params):
            y, _ = recurrence.run(cell, params, x, implementation=implementation)
            return jnp.sum(y**2)

        return jax.grad(loss)(params)

    def own(params):
        slopes = slope(jax.tree.map(lambda leaf: leaf[0], params))
        return jax.tree.map(lambda leaf: leaf[None], slopes)

    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *params)
    spec = P("data")
    sharded = jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=True)
    assert_close(jit(sharded)(stacked), jit(jax.vmap(slope))(stacked), 1e-5)


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 1), reason="no gradients of sharded products")
@ways(
    table.runs(ALL, costly=True), "implementation, remat",
    ("fused", 3), ("fused", None), ("reference", 3), ("reference", None),
)  # fmt: skip
def test_explicit_mesh(entry, key, implementation, remat):
    """Rows split over two devices by their type; carry and noise take their sharding from x."""
    cell = entry.cell
    loss, (params, rows) = program(cell, implementation, key, remat=remat), arguments(cell)
    step = jax.grad(loss, (0, 1, 2), has_aux=True)
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        rows = jax.device_put(rows, NamedSharding(mesh, P("data")))
        gradients, out = jit(step)(params, *rows)
        assert gradients[1].sharding.spec[0] == "data"
    expected = on_one_device(cell, implementation, key)
    assert_close(jax.device_get((out, gradients)), expected, 1e-5)


@table.cells(ALL, costly=True)
def test_carry_and_flags_need_no_sharding_of_their_own(cell):
    """They take that of x: under an explicit mesh, and where each device keeps its own copy."""
    params, x, carry, mask, reset = data_of(cell, np.float32)

    def program(carry, mask, reset):
        flags = {"mask": mask, "reset": reset, "implementation": "fused"}
        return lambda x: recurrence.run(cell, params, x, carry, **flags)

    run = program(carry, mask, reset)
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        result = jit(run)(jax.device_put(x, NamedSharding(mesh, P("data"))))
    assert_close(jax.device_get(result), jit(run)(x), 1e-5)

    half = jax.tree.map(lambda a: a[: BATCH // 2], (carry, mask, reset))
    twice = jax.tree.map(lambda a: np.concatenate([a, a]), half)
    spec, mesh = P("data"), mesh_of(AxisType.Auto)
    sharded = jax.shard_map(program(*half), mesh=mesh, in_specs=spec, out_specs=spec)
    assert_close(jit(sharded)(x), jit(program(*twice))(x), 1e-5)


@ways(table.runs(ALL, costly=True), "implementation", ("fused",), ("reference",))
def test_vmap_over_parameters_and_inputs(x64, entry, key, implementation):
    """Two models on two batches at once: what training several seeds does."""
    cell = entry.cell
    data = [data_of(cell, seed=seed) for seed in (0, 10)]
    weights = [cotangents_of(cell, d, seed) for seed, d in enumerate(data)]
    run = compiled(cell, implementation, key)
    stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *items) for items in (data, weights)]
    both = jit(jax.vmap(run.__wrapped__))(*stacked[0], stacked[1])
    for i, (one, weight) in enumerate(zip(data, weights, strict=True)):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], both), run(*one, weight), 1e-10)


def test_vmap_over_inputs_alone(x64):
    cell = CELLS["gru reset before"]
    data = data_of(cell)
    xs = np.stack([data.x, data.x[::-1]])
    run = jit(
        jax.vmap(
            lambda x: recurrence.run(cell, data.params, x, data.carry, implementation="fused")[0]
        )
    )
    for y, x in zip(run(xs), xs, strict=True):
        everything = data._replace(x=x, mask=None, reset=None)
        assert_close(y, run_with_gradients(cell, everything)[0][0], 1e-10)
