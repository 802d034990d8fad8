"""What `run` refuses, in which words; and the dtypes that it keeps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from flax.errors import ScopeParamShapeError
from table import BATCH, INPUTS, STEPS, TABLE, WIDTH, changed, data_of, jit, params_of

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, RNN, LearnedCarry, LSTMCarry, RNNCarry
from seqmodels.layers import Recurrent

CELL = TABLE["lstm"].cell
DATA = data_of(CELL, np.float32)


def run(**options):
    return recurrence.run(CELL, DATA.params, DATA.x, **options)


@pytest.mark.parametrize(
    "lengths, message",
    [
        ([1, 2, 9, 4, 5, 6, 7, 8], r"lengths\[2\]=9 is outside 0\.\.8"),
        ([1, 2, 3, -4, 5, 6, 7, 8], r"lengths\[3\]=-4 is outside 0\.\.8"),
        (np.ones(BATCH), "lengths has dtype float64; expected integers"),
        (np.ones(BATCH, bool), "lengths has dtype bool; expected integers"),
        ([3, 4], r"lengths has shape \(2,\); expected one for each row, \[8\]"),
        (3, r"lengths has shape \(\); expected one for each row"),
    ],
)
def test_A12_invalid_lengths_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        run(lengths=lengths)
    if not isinstance(lengths, list):
        with pytest.raises(ValueError, match=message.replace("float64", "float32")):
            run(lengths=jnp.asarray(lengths))


def test_A12_inside_jit_lengths_are_clipped():
    compiled = jit(lambda lengths: run(lengths=lengths))
    wild = np.array([-3, 0, 1, 7, 8, 9, 100, -(2**31)], np.int32)
    expected = compiled(np.clip(wild, 0, STEPS))
    jax.tree.map(np.testing.assert_array_equal, compiled(wild), expected)
    y = np.asarray(expected[0])
    assert not np.any(y[[0, 1, 7]]) and np.all(y[[4, 5, 6], -1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.int32])
def test_A12_any_integer_dtype_serves(dtype):
    lengths = np.arange(BATCH).astype(dtype)
    _, final = run(lengths=lengths)
    _, expected = run(lengths=list(range(BATCH)))
    jax.tree.map(np.testing.assert_array_equal, final, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("steps", [128, 300])
def test_A12_no_dtype_is_too_narrow_for_the_steps(dtype, steps):
    x, lengths = np.ones((2, steps, INPUTS), np.float32), np.array([100, 5], dtype)
    for given in (lengths, jnp.asarray(lengths)):
        y, _ = recurrence.run(CELL, DATA.params, x, lengths=given)
        assert np.any(y != 0, axis=2).sum(axis=1).tolist() == [100, 5]


def test_mask_and_lengths_exclude_each_other():
    with pytest.raises(ValueError, match="mask or lengths, not both"):
        run(mask=DATA.mask, lengths=[1] * BATCH)


@pytest.mark.parametrize("name", ["mask", "reset"])
def test_flags_of_another_dtype_or_shape_are_refused(unchecked, name):
    flag = np.ones((BATCH, STEPS), bool)
    for dtype in (np.int32, np.float32):
        with pytest.raises(ValueError, match=f"{name} has dtype {np.dtype(dtype)}; expected bool"):
            run(**{name: flag.astype(dtype)})
    for wrong in (flag[:, :3], flag[:3], flag[0], flag[:, :, None]):
        with pytest.raises(ValueError, match=rf"{name} has shape .*expected \[B, T\] = \[8, 8\]"):
            run(**{name: wrong})


def test_inputs_without_a_feature_axis_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"x has shape \(8, 8\); expected \[B, T, features\]"):
        recurrence.run(CELL, DATA.params, DATA.x[:, :, 0])


def test_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="implementation='turbo' is not one of auto, reference"):
        run(implementation="turbo")


def test_the_choice_of_an_implementation():
    """By static facts; by name always as asked."""
    assert recurrence.choose(CELL) == "fused"
    for name in ("reference", "fused"):
        assert recurrence.choose(CELL, name) == name


@pytest.mark.parametrize("implementation", ["auto", "reference", "fused"])
def test_the_implementation_asked_for_is_the_one_that_runs(monkeypatch, implementation):
    ran = []

    def spy(name, scan):
        return lambda *arguments: ran.append(name) or scan(*arguments)

    spies = {name: spy(name, scan) for name, scan in recurrence.IMPLEMENTATIONS.items()}
    monkeypatch.setattr(recurrence, "IMPLEMENTATIONS", spies)
    jax.eval_shape(lambda: run(implementation=implementation))
    assert ran == [recurrence.choose(CELL, implementation)]


@pytest.mark.parametrize("count", [0, -1, True, 2.5])
@pytest.mark.parametrize("name", ["remat", "unroll"])
def test_bad_counts_of_steps_are_refused(unchecked, name, count):
    with pytest.raises(ValueError, match=f"{name}={count!r} must be a whole number of at least 1"):
        run(**{name: count})


@pytest.mark.parametrize(
    "cell, given, message",
    [
        (LSTM(WIDTH), RNN(WIDTH), r"\['input'\]\['bias'\] has shape \(8,\); expected \(32,\)"),
        (RNN(WIDTH), RNN(WIDTH, bias=False), r"\['input'\]\['bias'\] is missing; .* \(8,\)"),
        (RNN(WIDTH, bias=False), RNN(WIDTH), r"\['input'\]\['bias'\] belongs to another cell"),
        (LSTM(WIDTH), LSTM(WIDTH, peepholes=True), r"\['peephole'\]\['f'\] belongs to another"),
        (LearnedCarry(GRU(WIDTH)), GRU(WIDTH), r"\['start'\]\['h'\] is missing"),
        (GRU(WIDTH, heads=2), GRU(WIDTH), r"\['recurrent'\]\['kernel'\] has shape \(8, 24\)"),
    ],
)
def test_parameters_of_another_cell_are_refused(cell, given, message):
    """Kernels of another cell may serve by broadcasting: an RNN's, in an LSTM, did."""
    params = params_of(given, dtype=np.float32)
    with pytest.raises(ValueError, match=rf"params{message}"):
        recurrence.run(cell, params, DATA.x)
    carry = jax.tree.map(jnp.zeros_like, cell.initial_carry(params_of(cell), BATCH))
    with pytest.raises(ValueError, match=rf"params{message}"):
        cell.step(params, carry, DATA.x[:, 0])
    with pytest.raises((ValueError, ScopeParamShapeError), match="param"):
        Recurrent(cell).apply({"params": params}, DATA.x)


def test_parameters_are_floating():
    """A kernel of whole numbers would cut the inputs down to such."""
    params = jax.tree.map(lambda leaf: leaf.astype(int), DATA.params)
    with pytest.raises(ValueError, match=r"params\['input'\]\['bias'\] has dtype int"):
        recurrence.run(CELL, params, DATA.x)


def test_a_step_refuses_a_carry_of_whole_numbers():
    carry = LSTMCarry(*(np.zeros((BATCH, WIDTH), np.int32) for _ in range(2)))
    with pytest.raises(ValueError, match=r"carry\.h has dtype int32; a carry is floating"):
        CELL.step(DATA.params, carry, DATA.x[:, 0])


def test_inputs_are_of_some_width():
    with pytest.raises(ValueError, match="LSTM: in_features=0 must be at least 1"):
        recurrence.run(CELL, DATA.params, DATA.x[:, :, :0])


@table.cells()
@pytest.mark.parametrize("given, batch", [*itertools.permutations([1, 3, 4], 2)])
def test_C04_carry_of_another_batch_size_is_refused(cell, given, batch):
    data = data_of(cell, np.float32)
    carry = cell.initial_carry(data.params, given)
    name, width = carry._fields[0], carry[0].shape[1]
    message = rf"carry\.{name} has shape \({given}, {width}\).*\({batch}, {width}\)"
    with pytest.raises(ValueError, match=message):
        recurrence.run(cell, data.params, data.x[:batch], carry)


def test_C02_a_carry_goes_by_names_not_by_position():
    h, c = DATA.carry
    for wrong in ((h, c), (c, h), [h, c], RNNCarry(h), {"h": h, "c": c}, h):
        given = type(wrong).__name__
        with pytest.raises(ValueError, match=rf"carry is {given}\(.*LSTMCarry\(\.h, \.c\)"):
            run(carry=wrong)
    swapped = run(carry=LSTMCarry(h=c, c=h))
    assert np.abs(swapped[0] - run(carry=DATA.carry)[0]).max() > 0.01


@pytest.mark.parametrize(
    "leaf, message",
    [
        (np.zeros((BATCH, WIDTH), np.int32), r"carry\.c has dtype int32; a carry is floating"),
        (np.zeros((BATCH, WIDTH), bool), r"carry\.c has dtype bool; a carry is floating"),
        (np.zeros((BATCH, WIDTH), np.complex64), r"carry\.c has dtype complex64"),
        (0.0, r"carry\.c has shape \(\); expected \(8, 8\)"),
        (np.zeros((BATCH, 6), np.float32), r"carry\.c has shape \(8, 6\); expected \(8, 8\)"),
        (np.zeros((1, BATCH, WIDTH), np.float32), r"carry\.c has shape \(1, 8, 8\)"),
        (None, r"carry is LSTMCarry\(\.h\); this cell's is LSTMCarry\(\.h, \.c\)"),
    ],
)
def test_C03_a_leaf_that_does_not_fit_is_named(leaf, message):
    with pytest.raises(ValueError, match=message):
        run(carry=LSTMCarry(h=DATA.carry.h, c=leaf))


BF16, F16, F32, F64 = jnp.bfloat16, jnp.float16, np.float32, np.float64
# dtypes of (inputs, parameters, carry); None: no carry given, so float32
MIXED = [(BF16, F32, None), (F32, BF16, None), (F16, F32, BF16), (BF16, BF16, F32), (F32, F32, F16)]
MIXED_WITH_64 = [(F64, F32, None), (F32, F64, None), (F32, F32, F64), (F64, F64, F32)]


@table.cells()
@pytest.mark.parametrize("dtypes", MIXED)
def test_C03_the_carry_keeps_its_dtype(cell, dtypes):
    check_dtypes(cell, "fused", STEPS, *dtypes)


@table.cells(costly=True)
@pytest.mark.parametrize(
    "implementation, steps", [("fused", 0), ("fused", 1), ("reference", 0), ("reference", STEPS)]
)
def test_C03_the_carry_keeps_its_dtype_for_every_length(cell, implementation, steps):
    check_dtypes(cell, implementation, steps, BF16, F32, None)


@table.cells(costly=True)
@pytest.mark.parametrize("dtypes", MIXED_WITH_64)
def test_C03_the_carry_keeps_its_dtype_under_x64(x64, cell, dtypes):
    check_dtypes(cell, "fused", STEPS, *dtypes)


def check_dtypes(cell, implementation, steps, x_dtype, p_dtype, c_dtype):
    """Of outputs, final carry and gradients. By shapes alone: nothing is computed."""
    data = data_of(cell, np.float32, steps=steps)
    params = jax.tree.map(lambda leaf: leaf.astype(p_dtype), data.params)
    carry = None
    if c_dtype is not None:
        carry = jax.tree.map(lambda leaf: leaf.astype(c_dtype), data.carry)

    def loss(params, x, carry):
        y, final = recurrence.run(
            cell, params, x, carry, mask=data.mask, reset=data.reset,
            implementation=implementation,
        )  # fmt: skip
        return jnp.sum(y.astype(jnp.float32)), (y, final)

    arguments = (params, data.x.astype(x_dtype), carry)
    gradients, (y, final) = jax.eval_shape(
        jax.grad(loss, argnums=(0, 1, 2), has_aux=True), *arguments
    )
    declared = np.dtype(np.float32 if c_dtype is None else c_dtype)
    assert {leaf.dtype for leaf in (y, *final)} == {declared}
    assert y.shape == (BATCH, steps, cell.out_features)
    jax.tree.map(lambda g, a: a.dtype == g.dtype or pytest.fail(str(g)), gradients, arguments)


def test_C03_what_the_carry_may_be_made_of():
    """NumPy arrays, in float64 too, and inputs of integers."""
    carry = jax.tree.map(np.float64, DATA.carry)
    y, final = run(carry=carry)
    assert {leaf.dtype for leaf in (y, *final)} == {np.dtype(np.float32)}
    expected = run(carry=jax.tree.map(jnp.asarray, DATA.carry))
    jax.tree.map(np.testing.assert_array_equal, (y, final), expected)

    whole = np.arange(BATCH * STEPS * INPUTS).reshape(DATA.x.shape) % 3
    y, _ = recurrence.run(CELL, DATA.params, whole.astype(np.int32))
    expected, _ = recurrence.run(CELL, DATA.params, whole.astype(np.float32))
    np.testing.assert_array_equal(y, expected)


@table.cells()
def test_C06_low_precision_products_leave_the_carry_in_float32(cell):
    low = changed(cell, dtype=jnp.bfloat16)
    data = data_of(cell, np.float32)
    for carry in (None, data.carry):
        y, final = jax.eval_shape(lambda c=carry: recurrence.run(low, data.params, data.x, c))
        assert {leaf.dtype for leaf in (y, *final)} == {np.dtype(np.float32)}


def test_C06_a_sum_over_5000_steps_in_bfloat16_is_exact():
    """An LSTM with all gates open adds 1 a step; a carry in bfloat16 would stop at 256."""
    cell = LSTM(1, dtype="bfloat16")
    zeros = jax.tree.map(np.zeros_like, data_of(LSTM(1), np.float32).params)
    params = {**zeros, "input": {**zeros["input"], "bias": np.full(4, 40.0, np.float32)}}
    x = np.ones((1, 5000, INPUTS), np.float32)
    for implementation in ("reference", "fused"):
        _, final = recurrence.run(cell, params, x, implementation=implementation)
        assert float(final.c[0, 0]) == 5000
