"""Options of the cells: which settings are refused, the parameters, and what these start as."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table import (
    KEY,
    changed,
    jit,
)

from seqmodels.cells import GRU, LSTM, MGU, RNN, LearnedCarry, MinGRU, RNNCarry, Zoneout
from seqmodels.cells.base import check_initializers
from seqmodels.initializers import Chrono, Constant, Normal, identity
from seqmodels.layers import Stack

E, H, P = 3, 6, 4  # widths that no two gates, heads or projections mix up
QUICK = {"input_init": Normal(0.1), "recurrent_init": Normal(0.1)}  # quick to draw


# What is refused ----------------------------------------------------------------------------------

REFUSED = {
    "heads=0": (lambda kind: kind(H, heads=0), "must be at least 1"),
    "heads=2.0": (lambda kind: kind(H, heads=2.0), "must be a whole number"),
    "heads=True": (lambda kind: kind(H, heads=True), "must be a whole number"),
    "heads=4": (lambda kind: kind(H, heads=4), "does not divide the width 6"),
    "bias=0": (lambda kind: kind(H, bias=0), "must be True or False"),
    "layer_norm=None": (lambda kind: kind(H, layer_norm=None), "must be True or False"),
    "dropout_per_step=1": (lambda kind: kind(H, dropout_per_step=1), "must be True or False"),
    "dropout_per_step=True": (lambda kind: kind(H, dropout_per_step=True), "there is no dropout"),
    "clip=0": (lambda kind: kind(H, clip=0), "must be above 0, or None"),
    "clip=-1.5": (lambda kind: kind(H, clip=-1.5), "must be above 0, or None"),
    "clip=nan": (lambda kind: kind(H, clip=float("nan")), "must be above 0, or None"),
    "clip=True": (lambda kind: kind(H, clip=True), "must be above 0, or None"),
    "dtype='int8'": (lambda kind: kind(H, dtype="int8"), "is not a floating dtype"),
}
REFUSED_RATES = {
    "True": True,  # E05: users took a rate for a flag
    "False": False,
    "-0.1": -0.1,
    "1.0": 1.0,
    "nan": float("nan"),
}
REFUSED_OF_ONE = {
    "RNN: activation='sine'": (lambda: RNN(H, activation="sine"), "not one of.*tanh.*relu"),
    "LSTM: coupled=1": (lambda: LSTM(H, coupled=1), "must be True or False"),
    "LSTM: peepholes='f'": (lambda: LSTM(H, peepholes="f"), "must be True or False"),
    "LSTM: projection=0": (lambda: LSTM(H, projection=0), "must be at least 1"),
    "LSTM: projection=True": (lambda: LSTM(H, projection=True), "must be a whole number"),
    "LSTM: heads=3": (lambda: LSTM(H, projection=P, heads=3), "does not divide the width 4"),
    "LSTM: cell_clip=0.0": (lambda: LSTM(H, cell_clip=0.0), "must be above 0, or None"),
    "LSTM: cell_clip=True": (lambda: LSTM(H, cell_clip=True), "must be above 0, or None"),
    "GRU: reset_after=0": (lambda: GRU(H, reset_after=0), "must be True or False"),
    "GRU: z_keeps=None": (lambda: GRU(H, z_keeps=None), "must be True or False"),
    "MGU: z_keeps=None": (lambda: MGU(H, z_keeps=None), "must be True or False"),
    "Zoneout: h=0 and c=0": (lambda: Zoneout(GRU(H)), "give a rate"),
    "Zoneout: h=1.0": (lambda: Zoneout(GRU(H), h=1.0), "up to, not including, 1"),
    "Zoneout: h=True": (lambda: Zoneout(GRU(H), h=True), "must be a number"),
    "Zoneout: c=-0.5": (lambda: Zoneout(LSTM(H), h=0.1, c=-0.5), "must be a number"),
    "Zoneout: c=0.3": (
        lambda: Zoneout(GRU(H), c=0.3).initial_carry({}, 2),
        r"the carry has \('h',\) alone",
    ),
}


@pytest.mark.parametrize("kind", [RNN, LSTM, GRU, MGU])
def test_settings_that_cannot_be_are_refused(unchecked, kind):
    """One line each, with the cell, the field and what was given."""
    for given, (make, reason) in REFUSED.items():
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: {given}.*{reason}$"):
            make(kind)
    for field in ("hidden_dropout", "candidate_dropout"):
        for given, rate in REFUSED_RATES.items():
            with pytest.raises(ValueError, match=f"^{kind.__name__}: {field}={given} must be"):
                kind(H, **{field: rate})


@pytest.mark.parametrize("given", REFUSED_OF_ONE)
def test_settings_of_one_cell_that_cannot_be_are_refused(unchecked, given):
    make, reason = REFUSED_OF_ONE[given]
    with pytest.raises(ValueError, match=f"^{given}.*{reason}") as error:
        make()
    assert "\n" not in str(error.value)


# Parameters ---------------------------------------------------------------------------------------

SHAPES = [
    (RNN(H), {"input": {"kernel": (E, H), "bias": (H,)}, "recurrent": {"kernel": (H, H)}}),
    (RNN(H, bias=False), {"input": {"kernel": (E, H)}, "recurrent": {"kernel": (H, H)}}),
    (
        RNN(H, heads=3, layer_norm=True),
        {
            "input": {"kernel": (E, H), "bias": (H,)},
            "recurrent": {"kernel": (3, 2, 1, 2)},
            "norm": {"scale": (H,)},
        },
    ),
    (
        LSTM(H),
        {"input": {"kernel": (E, 4 * H), "bias": (4 * H,)}, "recurrent": {"kernel": (H, 4 * H)}},
    ),
    (
        LSTM(H, coupled=True, peepholes=True, bias=False),
        {
            "input": {"kernel": (E, 3 * H)},
            "recurrent": {"kernel": (H, 3 * H)},
            "peephole": {"f": (H,), "o": (H,)},
        },
    ),
    (
        LSTM(H, heads=2, peepholes=True, projection=P, layer_norm=True),
        {
            "input": {"kernel": (E, 4 * H), "bias": (4 * H,)},
            "recurrent": {"kernel": (2, P // 2, 4, H // 2)},
            "peephole": {"i": (H,), "f": (H,), "o": (H,)},
            "projection": {"kernel": (H, P)},
            "input_norm": {"scale": (4 * H,)},
            "recurrent_norm": {"scale": (4 * H,)},
            "cell_norm": {"scale": (H,), "bias": (H,)},
        },
    ),
    (
        LSTM(H, layer_norm=True, bias=False),
        {
            "input": {"kernel": (E, 4 * H)},
            "recurrent": {"kernel": (H, 4 * H)},
            "input_norm": {"scale": (4 * H,)},
            "recurrent_norm": {"scale": (4 * H,)},
            "cell_norm": {"scale": (H,)},
        },
    ),
    (
        GRU(H),
        {
            "input": {"kernel": (E, 3 * H), "bias": (3 * H,)},
            "recurrent": {"kernel": (H, 3 * H), "bias": (H,)},
        },
    ),
    (
        GRU(H, reset_after=False, bias=False),
        {"input": {"kernel": (E, 3 * H)}, "recurrent": {"kernel": (H, 3 * H)}},
    ),
    (
        GRU(H, heads=2, layer_norm=True),
        {
            "input": {"kernel": (E, 3 * H), "bias": (3 * H,)},
            "recurrent": {"kernel": (2, H // 2, 3, H // 2), "bias": (H,)},
            "input_norm": {"scale": (3 * H,)},
            "recurrent_norm": {"scale": (3 * H,)},
        },
    ),
    (
        MGU(H),
        {
            "input": {"kernel": (E, 2 * H), "bias": (2 * H,)},
            "recurrent": {"kernel": (H, 2 * H), "bias": (H,)},
        },
    ),
    (
        LearnedCarry(Zoneout(LSTM(H, projection=P, bias=False), h=0.1)),
        {
            "input": {"kernel": (E, 4 * H)},
            "recurrent": {"kernel": (P, 4 * H)},
            "projection": {"kernel": (H, P)},
            "start": {"h": (P,), "c": (H,)},
        },
    ),
]


@pytest.mark.parametrize("cell, shapes", SHAPES, ids=[repr(cell)[:40] for cell, _ in SHAPES])
def test_shapes_of_the_parameters(cell, shapes):
    tree = jax.eval_shape(lambda key: cell.init(key, E), jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, tree) == shapes


def test_what_the_parameters_start_as():
    """Norms do nothing, peepholes and the learned carry are absent, each head is orthogonal."""
    cell = LearnedCarry(LSTM(H, heads=2, layer_norm=True, peepholes=True, projection=P))
    params = cell.init(KEY, E)
    ones, zeros = ("input_norm", "recurrent_norm"), ("peephole", "start")
    assert all(np.all(leaf == 1) for name in ones for leaf in jax.tree.leaves(params[name]))
    assert not any(np.any(leaf) for name in zeros for leaf in jax.tree.leaves(params[name]))
    assert np.all(params["cell_norm"]["scale"] == 1) and not np.any(params["cell_norm"]["bias"])
    kernel = np.asarray(params["recurrent"]["kernel"])
    for head in range(2):
        for gate in range(4):
            block = kernel[head, :, gate]
            np.testing.assert_allclose(block @ block.T, np.eye(P // 2), atol=1e-5)
    assert np.ptp(kernel, axis=(0, 2)).min() > 1e-3, "two blocks are one draw"
    bound = (6 / (H + P)) ** 0.5
    projection = np.abs(params["projection"]["kernel"])
    assert 0.5 * bound < projection.max() <= bound


def test_irnn_starts_as_a_sum_over_time():
    """ReLU with the identity (Le et al. 2015): positive inputs add up at the start; with heads,
    each of them has an identity of its own."""
    x = np.abs(np.random.default_rng(0).normal(size=(1, 4))).astype(np.float32)
    for heads in (1, 2):
        cell = RNN(4, activation="relu", recurrent_init=identity, heads=heads)
        params = cell.init(KEY, 4)
        params["input"]["kernel"] = np.eye(4, dtype=np.float32)
        carry = RNNCarry(2 * x)
        np.testing.assert_allclose(cell.step(params, carry, x)[1], 3 * x, rtol=1e-6)


# The start of the gates ---------------------------------------------------------------------------


def test_gate_bias_reaches_the_gates_it_is_meant_for():
    width = 7

    def bias(cell):
        return np.asarray(cell.init(KEY, 2)["input"]["bias"])

    def constant(kind, **options):
        return list(bias(kind(width, gate_bias=Constant(3.0), **QUICK, **options))[::width])

    assert constant(LSTM) == [0, 3, 0, 0]
    assert constant(LSTM, coupled=True) == [3, 0, 0]
    for reset_after in (True, False):
        assert constant(GRU, reset_after=reset_after) == [0, 3, 0]
        assert constant(GRU, reset_after=reset_after, z_keeps=False) == [0, -3, 0]
        assert constant(MGU, reset_after=reset_after) == [-3, 0]
        assert constant(MGU, reset_after=reset_after, z_keeps=True) == [3, 0]

    i, f, g, o = np.split(bias(LSTM(width, gate_bias=Chrono(100), **QUICK)), 4)
    np.testing.assert_array_equal(i, -f)
    assert f.min() >= 0 and f.max() <= np.log(99) and np.ptp(f) > 0
    np.testing.assert_array_equal([g, o], np.zeros((2, width)))
    f, *rest = np.split(bias(LSTM(width, gate_bias=Chrono(100), coupled=True, **QUICK)), 3)
    assert f.min() >= 0 and np.ptp(f) > 0 and not np.any(rest)
    for kind in (LSTM, GRU, MGU):
        assert (
            "bias"
            not in kind(width, gate_bias=Constant(3.0), bias=False, **QUICK).init(KEY, 2)["input"]
        )


def memory_kept(cell, params):
    """The derivative of each unit's memory by itself at x = h = 0, without the recurrent kernel."""
    recurrent = {**params["recurrent"], "kernel": 0 * params["recurrent"]["kernel"]}
    params = {**params, "recurrent": recurrent}
    x = np.zeros((1, params["input"]["kernel"].shape[0]), np.float32)
    zero = cell.initial_carry(params, 1)
    memory = "c" if "c" in zero._fields else "h"

    def after(leaf):
        carry, _ = cell.step(params, zero._replace(**{memory: leaf}), x)
        return getattr(carry, memory)

    _, kept = jax.jvp(after, (getattr(zero, memory),), (jnp.ones_like(getattr(zero, memory)),))
    return kept


F04 = (
    LSTM(H, coupled=True, layer_norm=True, peepholes=True, **QUICK),
    GRU(H, z_keeps=False, **QUICK),
    LearnedCarry(MGU(H, **QUICK)),
    LSTM(H, projection=P, heads=2, **QUICK),
    GRU(H, reset_after=False, layer_norm=True, **QUICK),
    MGU(H, z_keeps=True, reset_after=True, **QUICK),
)


@pytest.mark.slow
def test_F04_the_gate_bias_acts_once_in_every_layer_and_direction():
    """sigmoid(1) of the memory is kept, not sigmoid(2), whatever the convention of the gate."""
    cells = F04[:3]
    stack = Stack(cells, bidirectional=True)
    params = jit(stack.init)(KEY, np.zeros((1, 2, E), np.float32))["params"]
    for i, cell in enumerate(cells):
        for direction in ("forward", "backward"):
            kept = memory_kept(cell, params[f"layer_{i}"][direction])
            np.testing.assert_allclose(kept, 0.731059, atol=1e-6)


@pytest.mark.parametrize("cell", F04, ids=lambda cell: repr(cell)[:30])
def test_F04_without_biases_half_is_kept(cell):
    for bias, kept in ((True, 0.731059), (False, 0.5)):
        one = changed(cell, bias=bias)
        params = jit(one.init, static_argnums=1)(KEY, E)
        np.testing.assert_allclose(jit(memory_kept, static_argnums=0)(one, params), kept, atol=1e-6)


@pytest.mark.parametrize(
    "cell, field", [(LSTM(4), "gate_bias"), (MinGRU(4), "gate_bias"), (GRU(4), "bias_init")]
)
def test_a_number_is_no_initialiser(cell, field):
    """Type checks of the tests refuse it before the cell does, so it comes in by the back door."""
    cell = copy.copy(cell)
    object.__setattr__(cell, field, 1.0)
    with pytest.raises(ValueError, match=f"{type(cell).__name__}: {field}=1.0 must be one of"):
        check_initializers(cell)
