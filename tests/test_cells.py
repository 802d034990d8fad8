"""The contract of a cell, for every cell in the table: values against NumPy loops, gradients
against their finite differences, and the shape of the protocol."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from table import (
    INPUTS,
    KEY,
    PROBES,
    TABLE,
    Data,
    assert_close,
    cotangents_of,
    data_of,
    jit,
    params_of,
    run_with_gradients,
)

from seqmodels import recurrence
from seqmodels.cells import CELLS, GRU, LSTM, RNN
from seqmodels.initializers import Chrono, Constant, identity

with_oracle = {name: entry for name, entry in {**TABLE, **PROBES}.items() if entry.oracle}
every_oracle = pytest.mark.parametrize("entry", with_oracle.values(), ids=list(with_oracle))
every_cell = pytest.mark.parametrize("cell", [e.cell for e in TABLE.values()], ids=list(TABLE))


def oracle_run(entry, data, **options):
    """The NumPy walk on the same data."""
    initial = entry.cell.initial_carry(data.params, len(data.x), np.float64)
    return reference.run(
        entry.oracle,
        data.params,
        data.x,
        data.carry._asdict(),
        initial=jax.tree.map(np.asarray, initial._asdict()),
        mask=data.mask,
        reset=data.reset,
        **options,
    )


def test_every_cell_of_the_library_is_in_the_table():
    assert {type(entry.cell) for entry in TABLE.values()} == set(CELLS.values())


@every_oracle
@pytest.mark.parametrize("reverse", [False, True])
def test_run_equals_the_numpy_loop(x64, entry, reverse):
    data = data_of(entry.cell)
    (y, final), _ = run_with_gradients(entry.cell, data, "reference", reverse=reverse)
    assert_close((y, final._asdict()), oracle_run(entry, data, reverse=reverse), 1e-10)


@every_oracle
def test_steps_one_by_one_equal_the_numpy_loop(x64, entry):
    data = data_of(entry.cell)
    step = jit(entry.cell.step)
    carry, outputs = data.carry, []
    for t in range(data.x.shape[1]):
        carry, y = step(data.params, carry, data.x[:, t])
        outputs.append(y)
    everything = data._replace(mask=None, reset=None)
    expected = oracle_run(entry, everything)
    assert_close((np.stack(outputs, 1), carry._asdict()), expected, 1e-10)


GRADIENT_RUNS = [
    ("reference", 7, False),
    ("fused", 1, True),
    ("fused", 64, False),
    ("fused", 64, True),
]


@every_cell
@pytest.mark.parametrize("implementation, steps, reverse", GRADIENT_RUNS)
def test_D01_gradients_equal_finite_differences_of_the_numpy_loop(
    x64, cell, implementation, steps, reverse
):
    entry = next(entry for entry in TABLE.values() if entry.cell == cell)
    for size in (0.1, 0.999):
        data = long_data(cell, steps, recurrent_size=size)
        weights = cotangents_of(cell, data)
        _, gradients = run_with_gradients(cell, data, implementation, reverse=reverse)

        def loss(params, x, carry, data=data, weights=weights):
            here = data._replace(params=params, x=x, carry=carry)
            y, final = oracle_run(entry, here, reverse=reverse)
            w_y, w_final = weights
            return np.sum(w_y * y) + sum(np.sum(w * final[k]) for k, w in w_final._asdict().items())

        assert_slopes(loss, (data.params, data.x, data.carry), gradients)


def long_data(cell, steps, recurrent_size):
    """Each recurrent block is `recurrent_size` times a rotation, so that memory neither fades
    within a few steps nor explodes. The hardest flags up to T = 7, two ragged rows beyond."""
    data = data_of(cell, steps=min(steps, 7))
    rng = np.random.default_rng(5)
    kernel = data.params["recurrent"]["kernel"]
    blocks = kernel.shape[1] // kernel.shape[0]
    rotations = [np.linalg.qr(rng.normal(size=(len(kernel),) * 2))[0] for _ in range(blocks)]
    recurrent = {**data.params["recurrent"], "kernel": recurrent_size * np.hstack(rotations)}
    data = data._replace(params={**data.params, "recurrent": recurrent})
    if steps <= 7:
        return data
    x, carry = rng.normal(size=(2, steps, INPUTS)), jax.tree.map(lambda leaf: leaf[:2], data.carry)
    mask, reset = np.ones(x.shape[:2], bool), np.zeros(x.shape[:2], bool)
    mask[0, steps - 5 :] = mask[1, 3] = False
    return Data(data.params, x, carry, mask, reset)


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


@every_cell
def test_methods_act_on_any_leading_axes(x64, cell):
    params, rng = params_of(cell), np.random.default_rng(0)
    x = rng.normal(size=(2, 3, INPUTS))
    carry = jax.tree.map(
        lambda leaf: rng.normal(size=(2, 3, *leaf.shape[1:])), cell.initial_carry(params, 2)
    )
    whole = jit(cell.step)(params, carry, x)
    by_column = jit(jax.vmap(cell.step, (None, 1, 1), 1))(params, carry, x)
    assert_close(whole, by_column, 1e-12)


@every_cell
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_a_step_keeps_the_dtype_of_the_carry(cell, dtype):
    params, x = params_of(cell, dtype=np.float32), np.ones((2, INPUTS), np.float32)
    carry, y = jax.eval_shape(cell.step, params, cell.initial_carry(params, 2, dtype), x)
    assert {leaf.dtype for leaf in (y, *carry)} == {np.dtype(dtype)}


@every_cell
def test_parameters_and_carry_start_as_the_protocol_says(cell):
    make = jit(cell.init, static_argnums=1)
    params, other = make(KEY, INPUTS), make(jax.random.fold_in(KEY, 1), INPUTS)
    assert set(params) == {"input", "recurrent"}
    assert params["input"]["kernel"].shape[0] == INPUTS
    assert params["recurrent"]["kernel"].shape[0] == cell.features
    assert params["recurrent"]["kernel"].shape[1] % cell.features == 0
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    for part in ("input", "recurrent"):
        assert not np.array_equal(params[part]["kernel"], other[part]["kernel"])

    for dtype in (np.float32, jnp.bfloat16):
        carry = cell.initial_carry(params, 3, dtype)
        assert isinstance(carry, tuple) and carry._fields
        assert all(leaf.shape[0] == 3 and leaf.dtype == dtype for leaf in carry)
        assert cell.output(carry).dtype == dtype
        buffers = {leaf.unsafe_buffer_pointer() for leaf in carry}
        assert len(buffers) == len(carry), "a donated step could not overwrite each in place"


@every_cell
def test_cells_with_equal_settings_share_a_compiled_program(cell):
    twin = dataclasses.replace(cell)
    assert twin == cell and hash(twin) == hash(cell) and twin is not cell
    assert dataclasses.replace(cell, features=cell.features + 1) != cell
    with pytest.raises(dataclasses.FrozenInstanceError):
        cell.features = 3


@every_cell
@pytest.mark.parametrize("features", [0, -1, True])
def test_a_width_below_one_is_refused(cell, features):
    with pytest.raises(ValueError, match=f"features={features}"):
        dataclasses.replace(cell, features=features)


@every_cell
def test_low_precision_is_near_and_keeps_the_carry_in_float32(cell):
    data = data_of(cell, np.float32)
    low = dataclasses.replace(cell, dtype="bfloat16")
    run = jit(lambda cell: recurrence.run(cell, data.params, data.x, data.carry), static_argnums=0)
    assert {leaf.dtype for leaf in jax.tree.leaves(run(low))} == {np.dtype(np.float32)}
    assert_close(run(low), run(cell), 0.05)
    difference = np.abs(run(low)[0] - run(cell)[0]).max()
    assert difference > 0, "the products ran in float32"


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation='sine'.*tanh.*relu"):
        RNN(3, activation="sine")


def test_shapes_of_the_built_in_cells():
    """Gates side by side, one bias each; GRU's second bias belongs to the candidate alone."""
    width = 5

    def shapes(cell):
        tree = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
        return jax.tree.map(lambda leaf: leaf.shape, tree)

    for cell, gates, own in [
        (RNN(width), 1, {}),
        (LSTM(width), 4, {}),
        (GRU(width), 3, {"bias": (width,)}),
        (GRU(width, reset_after=False), 3, {"bias": (width,)}),
    ]:
        assert shapes(cell) == {
            "input": {"kernel": (INPUTS, gates * width), "bias": (gates * width,)},
            "recurrent": {"kernel": (width, gates * width), **own},
        }


def test_gate_bias_reaches_the_gates_it_is_meant_for():
    width = 7
    lstm = LSTM(width, gate_bias=Constant(3.0)).init(KEY, 2)["input"]["bias"]
    np.testing.assert_array_equal(lstm, np.repeat([0.0, 3.0, 0.0, 0.0], width))
    gru = GRU(width, gate_bias=Constant(3.0)).init(KEY, 2)["input"]["bias"]
    np.testing.assert_array_equal(gru, np.repeat([0.0, 3.0, 0.0], width))

    chrono = LSTM(width, gate_bias=Chrono(100)).init(KEY, 2)["input"]["bias"]
    i, f, g, o = np.split(np.asarray(chrono), 4)
    np.testing.assert_array_equal(i, -f)
    assert f.min() >= 0 and f.max() <= np.log(99) and np.ptp(f) > 0
    np.testing.assert_array_equal([g, o], np.zeros((2, width)))


def test_irnn_starts_as_a_sum_over_time():
    """ReLU with the identity (Le et al. 2015): positive inputs add up at the start."""
    cell = RNN(2, activation="relu", recurrent_init=identity)
    params = cell.init(KEY, 2)
    params["input"]["kernel"] = np.eye(2, dtype=np.float32)
    x = np.abs(np.random.default_rng(0).normal(size=(1, 5, 2))).astype(np.float32)
    y, _ = recurrence.run(cell, params, x)
    np.testing.assert_allclose(y, np.cumsum(x, axis=1), rtol=1e-6)
