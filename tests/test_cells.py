"""The contract of a cell, for every cell in the table: values against NumPy loops, gradients
against their finite differences, and the shape of the protocol."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from table import (
    INPUTS,
    KEY,
    STEPS,
    TABLE,
    Data,
    assert_close,
    changed,
    cotangents_of,
    data_of,
    jit,
    noise_of,
    oracle_run,
    params_of,
    run_with_gradients,
)

from seqmodels import recurrence
from seqmodels.cells import CELLS, LearnedCarry, Zoneout

WITH_ORACLE = {name: entry for name, entry in table.ALL.items() if entry.oracle}


def test_every_cell_and_option_is_in_the_table():
    """Each field of each cell stands somewhere with another value than its default."""
    used = {}
    for entry in TABLE.values():
        cell = entry.cell
        while cell is not None:
            fields = used.setdefault(type(cell), set())
            fields |= {f.name for f in dataclasses.fields(cell) if is_set(cell, f)}
            cell = getattr(cell, "cell", None)
    assert set(used) == {*CELLS.values(), LearnedCarry, Zoneout}
    start = {"input_init", "recurrent_init", "bias_init", "gate_bias"}  # not of `update`'s concern
    for kind, fields in used.items():
        wanted = {f.name for f in dataclasses.fields(kind) if f.init} - start - {"dtype"}
        assert fields >= wanted, f"{kind.__name__}: no line of the table has {wanted - fields}"


def is_set(cell, field):
    return field.default is dataclasses.MISSING or getattr(cell, field.name) != field.default


@table.runs(WITH_ORACLE)
@pytest.mark.parametrize("reverse", [False, True])
def test_run_equals_the_numpy_loop(x64, entry, key, reverse):
    data = data_of(entry.cell)
    result, _ = run_with_gradients(entry.cell, data, "reference", key, reverse=reverse)
    expected = oracle_run(entry, data, noise_of(entry.cell, key, data.x.shape[:2]), reverse)
    assert_close(result, expected, 1e-10)


@table.entries(WITH_ORACLE)
def test_steps_one_by_one_equal_the_numpy_loop(x64, entry):
    data = data_of(entry.cell)
    step = jit(entry.cell.step)
    carry, outputs = data.carry, []
    for t in range(data.x.shape[1]):
        carry, y = step(data.params, carry, data.x[:, t])
        outputs.append(y)
    everything = data._replace(mask=None, reset=None)
    assert_close((np.stack(outputs, 1), carry), oracle_run(entry, everything), 1e-10)


@table.runs()
@pytest.mark.parametrize("implementation, reverse", [("reference", False), ("fused", True)])
def test_D01_gradients_equal_finite_differences_of_the_numpy_loop(
    x64, entry, key, implementation, reverse
):
    check_gradients(entry, key, implementation, STEPS, reverse)


@table.runs(costly=True)
@pytest.mark.parametrize("steps, reverse", [(1, True), (64, False), (64, True)])
def test_D01_gradients_of_one_step_and_of_many(x64, entry, key, steps, reverse):
    check_gradients(entry, key, "fused", steps, reverse)


def check_gradients(entry, key, implementation, steps, reverse):
    cell = entry.cell
    for size in (0.1, 0.999):
        data = long_data(cell, steps, recurrent_size=size)
        weights, noise = cotangents_of(cell, data), noise_of(cell, key, data.x.shape[:2])
        _, gradients = run_with_gradients(cell, data, implementation, key, reverse=reverse)

        def loss(params, x, carry, data=data, weights=weights, noise=noise):
            here = data._replace(params=params, x=x, carry=carry)
            out = oracle_run(entry, here, noise, reverse)
            return sum(jax.tree.leaves(jax.tree.map(lambda a, w: np.sum(a * w), out, weights)))

        assert_slopes(loss, (data.params, data.x, data.carry), gradients)


def long_data(cell, steps, recurrent_size):
    """Each recurrent block is `recurrent_size` times a rotation, so that memory neither fades
    within a few steps nor explodes. The hardest flags up to T = 8, two ragged rows beyond."""
    data = data_of(cell, steps=min(steps, STEPS))
    rng = np.random.default_rng(5)
    recurrent = data.params.get("recurrent", {})
    if "kernel" in recurrent:  # cells that are linear in their carry have none
        rotations = recurrent_size * rotated(rng, cell, recurrent["kernel"])
        recurrent = {**recurrent, "kernel": rotations}
        data = data._replace(params={**data.params, "recurrent": recurrent})
    if steps <= STEPS:
        return data
    x, carry = rng.normal(size=(2, steps, INPUTS)), jax.tree.map(lambda leaf: leaf[:2], data.carry)
    mask, reset = np.ones(x.shape[:2], bool), np.zeros(x.shape[:2], bool)
    mask[0, steps - 5 :] = mask[1, 3] = False
    return Data(data.params, x, carry, mask, reset)


def rotated(rng, cell, kernel):
    """A kernel of the same shape whose blocks are rotations."""
    heads, rows, gates, width = blocks_of(cell, kernel).shape

    def rotation():
        return np.linalg.qr(rng.normal(size=(max(rows, width),) * 2))[0][:rows, :width]

    rotations = np.stack([[rotation() for _ in range(gates)] for _ in range(heads)])
    return np.swapaxes(rotations, 1, 2).reshape(kernel.shape)


def blocks_of(cell, kernel):
    """A recurrent kernel as [heads, P/n, G, H/n], whatever its number of heads."""
    return kernel if kernel.ndim == 4 else kernel.reshape(1, len(kernel), -1, cell.features)


def assert_slopes(loss, arguments, gradients, size=1e-6):
    """Central differences of `loss` along one random direction in each leaf."""
    leaves, structure = jax.tree.flatten(arguments)
    assert structure == jax.tree.structure(gradients)
    rng = np.random.default_rng(11)
    for i, gradient in enumerate(jax.tree.leaves(gradients)):
        direction = rng.normal(size=leaves[i].shape)

        def moved(by, i=i, direction=direction):
            changed = [*leaves[:i], leaves[i] + by * direction, *leaves[i + 1 :]]
            return loss(*jax.tree.unflatten(structure, changed))

        slope = (moved(size) - moved(-size)) / (2 * size)
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6, atol=1e-6)


@table.cells()
def test_methods_act_on_any_leading_axes(x64, cell):
    params, rng = params_of(cell), np.random.default_rng(0)
    x = rng.normal(size=(2, 3, INPUTS))
    carry = jax.tree.map(
        lambda leaf: rng.normal(size=(2, 3, *leaf.shape[1:])), cell.initial_carry(params, 2)
    )
    whole = jit(cell.step)(params, carry, x)
    by_column = jit(jax.vmap(cell.step, (None, 1, 1), 1))(params, carry, x)
    assert_close(whole, by_column, 1e-12)


@table.cells()
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_a_step_keeps_the_dtype_of_the_carry(cell, dtype):
    params, x = params_of(cell, dtype=np.float32), np.ones((2, INPUTS), np.float32)
    carry, y = jax.eval_shape(cell.step, params, cell.initial_carry(params, 2, dtype), x)
    assert {leaf.dtype for leaf in (y, *carry)} == {np.dtype(dtype)}


@table.cells()
@pytest.mark.parametrize("batch", [1, 4])
def test_C04_a_step_refuses_a_carry_of_another_batch(cell, batch):
    """Never broadcasting: one row of memory is not the memory of three."""
    params = params_of(cell, dtype=np.float32)
    x, carry = np.ones((3, INPUTS), np.float32), cell.initial_carry(params, batch)
    for field in carry._fields:
        wrong = cell.initial_carry(params, 3)._replace(**{field: getattr(carry, field)})
        message = rf"carry\.{field} has shape \({batch}, \d+\); x has shape \(3, {INPUTS}\)"
        with pytest.raises(ValueError, match=message):
            cell.step(params, wrong, x)


@table.cells()
def test_parameters_and_carry_start_as_the_protocol_says(cell):
    make = jit(cell.init, static_argnums=1)
    params, other = make(KEY, INPUTS), make(jax.random.fold_in(KEY, 1), INPUTS)
    inputs, gates = params["input"]["kernel"].shape
    assert inputs == INPUTS and gates % cell.features == 0
    if not cell.associative:
        heads, rows, gates, width = blocks_of(cell, params["recurrent"]["kernel"]).shape
        assert params["input"]["kernel"].shape == (INPUTS, gates * cell.features)
        assert (heads * rows, heads * width) == (cell.out_features, cell.features)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    for name in ("input", "recurrent"):
        if "kernel" in params.get(name, {}):
            assert not np.array_equal(params[name]["kernel"], other[name]["kernel"])

    for dtype in (np.float32, jnp.bfloat16):
        carry = cell.initial_carry(params, 3, dtype)
        assert isinstance(carry, tuple) and carry._fields
        assert all(leaf.shape[0] == 3 and leaf.dtype == dtype for leaf in carry)
        y = cell.output(carry)
        assert y.dtype == dtype and y.shape == (3, cell.out_features)
        buffers = {leaf.unsafe_buffer_pointer() for leaf in carry}
        assert len(buffers) == len(carry), "a donated step could not overwrite each in place"


@table.cells()
def test_cells_with_equal_settings_share_a_compiled_program(cell):
    """A copy too, and what another process was sent."""
    for twin in (changed(cell), copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert twin == cell and hash(twin) == hash(cell) and twin is not cell
    wider = changed(cell, features=2 * cell.features)
    assert wider != cell and wider.features == 2 * cell.features
    with pytest.raises(dataclasses.FrozenInstanceError):
        cell.features = 3


@table.cells()
@pytest.mark.parametrize("features", [0, -1, True])
def test_a_width_below_one_is_refused(cell, features):
    with pytest.raises(ValueError, match=f"features={features}"):
        changed(cell, features=features)


@table.cells()
def test_low_precision_is_near_and_keeps_the_carry_in_float32(cell):
    data = data_of(cell, np.float32)
    low = changed(cell, dtype="bfloat16")
    assert low.dtype == "bfloat16"
    run = jit(lambda cell: recurrence.run(cell, data.params, data.x, data.carry), static_argnums=0)
    assert {leaf.dtype for leaf in jax.tree.leaves(run(low))} == {np.dtype(np.float32)}
    assert_close(run(low), run(cell), 0.05)
    difference = np.abs(run(low)[0] - run(cell)[0]).max()
    assert difference > 0, "the products ran in float32"
