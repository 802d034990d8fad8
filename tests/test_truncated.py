"""Truncated backpropagation: gradients cut at chunk borders, memory carried across them.

F1 is the tanh cell of one unit of the other cases, h' = tanh(1.0 x + 0.5 h + 0.1) on
x = 1, -1, 0.5 from h = 0.2, inside a labeller whose head shows h as it is.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from table import assert_close, jit, module_params
from test_cells import assert_slopes
from test_updates import TRAIN, equal, start, total

from seqmodels import optim
from seqmodels.cells import LSTM, RNN, LSTMCarry, RNNCarry
from seqmodels.data.rows import Rows, as_stream, chunk, chunks
from seqmodels.layers import Stack
from seqmodels.losses import squared_error
from seqmodels.models import SequenceLabeller
from seqmodels.training.step import Learner, train_step
from seqmodels.types import Batch

STEP = jit(train_step, static_argnums=0)
X, W, U, B, H0 = [1.0, -1.0, 0.5], 1.0, 0.5, 0.1, 0.2
FULL, TWO_ONE, ONES = 0.6607506, 0.3601382, 0.3357795  # F1-chunk
RATE = 0.5


def shown(outputs, targets, weights):
    """Not a metric: the outputs, for a look at them through the step's sums."""
    return outputs, jnp.sum(weights)


def labeller(*cells):
    return SequenceLabeller(Stack(cells), 1)


F1 = Learner(labeller(RNN(1)), optim.make("sgd", RATE), total, shown)


def f1_state(learner=F1, u=U):
    """In float64, where that is enabled."""
    w, b, u, one, zero, h0 = (jnp.array(number, float) for number in (W, B, u, 1, 0, H0))
    inputs = {"kernel": w[None, None], "bias": b[None]}
    cell = {"input": inputs, "recurrent": {"kernel": u[None, None]}}
    head = {"kernel": one[None, None], "bias": zero[None]}
    params = {"stack": {"layer_0": cell}, "head": head}
    return start(learner, params, {"layer_0": RNNCarry(h0[None, None])})


def recurrent(state):
    return float(state.params["stack"]["layer_0"]["recurrent"]["kernel"][0, 0])


def pieces(x, cut, weights=None):
    """One row of numbers as batches of `cut` steps, each padded to the longest with NaN."""
    width, found, first = max(cut), [], 0
    weights = np.ones(len(x)) if weights is None else weights
    for steps in cut:
        here = np.arange(first, min(first + steps, len(x)))
        mask = (np.arange(width) < len(here))[None]
        inputs, weight = np.full((1, width, 1), np.nan, np.float32), np.zeros_like(mask, np.float32)
        inputs[mask, 0], weight[mask] = np.array(x)[here], np.array(weights)[here]
        found.append(Batch(inputs, weight, mask, weight, np.zeros_like(mask)))
        first += steps
    return found


def by_hand(x, cut, u=U):
    """d/du of the sum of h, where each border makes the derivative of h forgotten."""
    h, slope, found, borders = H0, 0.0, 0.0, set(np.cumsum(cut).tolist())
    for t, number in enumerate(x):
        if t in borders:
            slope = 0.0
        new = np.tanh(W * number + u * h + B)
        slope = (1 - new**2) * (h + u * slope)
        h = new
        found += slope
    return found


def slopes(x, cut, u=U, weights=None):
    """(gradient of each chunk's summed loss, losses, last state), parameters held still."""
    state, found, logged = f1_state(u=u), [], []
    for batch in pieces(x, cut, weights):
        new, sums = STEP(F1, state, batch)
        weight = float(np.sum(batch.weights))
        found.append((recurrent(state) - recurrent(new)) * weight / RATE)
        logged.append(float(sums["loss"]))
        state = new.replace(params=state.params)
    return found, logged, state


@pytest.mark.parametrize(
    "cut, expected", [((3,), FULL), ((5,), FULL), ((2, 1), TWO_ONE), ((1, 1, 1), ONES)]
)
def test_G01_G10_gradients_of_chunks_add_up_to_the_closed_form(x64, cut, expected):
    found, logged, state = slopes(X, cut)
    assert sum(found) == pytest.approx(expected, abs=1e-7)
    assert sum(found) == pytest.approx(by_hand(X, cut), abs=1e-12)
    assert sum(logged) == pytest.approx(0.833655 - 0.448781 + 0.358889, abs=2e-6)
    assert float(state.carry["layer_0"].h[0, 0]) == pytest.approx(0.358889, abs=1e-6)


@pytest.mark.parametrize("u", [0.1, 0.999])
def test_G01_every_way_to_cut_five_steps(x64, u):
    x, known = [0.25, -0.75, 0.125, 0.5, -0.25], set()
    for borders in itertools.product([False, True], repeat=4):
        at = [0, *(t + 1 for t in range(4) if borders[t]), 5]
        cut = np.diff(at).tolist()
        found = sum(slopes(x, cut, u)[0])
        assert found == pytest.approx(by_hand(x, cut, u), abs=1e-12), cut
        known.add(round(found, 10))
    assert len(known) == 16  # no two of them alike


@pytest.mark.parametrize(
    "cut, expected", [((3,), -0.0903652), ((1, 2), -0.1009758), ((1, 1, 1), -0.3909775)]
)
def test_G01_history_is_cut_where_only_the_last_step_is_scored(x64, cut, expected):
    """F1-grad. A chunk without a scored term still moves the memory on."""
    last = [0.0, 0.0, 1.0]
    found, _, state = slopes(X, cut, weights=last)
    assert found[-1] == pytest.approx(expected, abs=1e-7)
    assert found[:-1] == [0] * (len(cut) - 1)
    assert int(state.step) == len(cut)


def test_G10_one_update_is_the_rate_times_the_closed_form(x64):
    """Not doubled, for one chunk of 3 as for 3 chunks of 1 that make one update."""
    new, sums = STEP(F1, f1_state(), pieces(X, [3])[0])
    assert recurrent(new) == pytest.approx(U - RATE * FULL / 3, abs=1e-7)
    assert float(sums["loss"] / sums["weight"]) == pytest.approx(0.743763 / 3, abs=1e-6)

    ids = jax.tree.map(lambda *a: np.stack(a)[None], *pieces(X, [1, 1, 1]))
    joint = F1._replace(accumulate=3, metric=total)
    new, sums = TRAIN(joint, itself, f1_state(joint), jnp.int32(1), ids, None)
    assert recurrent(new) == pytest.approx(U - RATE * ONES / 3, abs=1e-7)
    assert float(new.carry["layer_0"].h[0, 0]) == pytest.approx(0.358889, abs=1e-6)
    assert (float(sums["weight"]), float(sums["steps"]), int(new.step)) == (3, 1, 1)


def itself(key, ids, data):
    """Batches that are handed over as they are."""
    return ids


def test_G01_G10_cut_gradient_of_an_lstm_equals_finite_differences(x64):
    """h and c both enter a chunk as numbers; the oracle is a NumPy loop."""
    learner = Learner(labeller(LSTM(2)), optim.make("sgd", 1.0), total, total)
    x = np.random.default_rng(1).normal(size=(2, 3, 1)).astype(np.float32)
    mask = np.array([[True] * 3, [True, True, False]])
    weights = mask * np.float32([[1.0, 0.5, 2.0]])
    params = module_params(learner.model, x, dtype=np.float64)["params"]
    carry = {"layer_0": LSTMCarry(*np.random.default_rng(2).normal(size=(2, 2, 2)))}

    def loss(tree):
        own, layer = carry["layer_0"]._asdict(), tree["stack"]["layer_0"]
        y, _ = reference.run(reference.lstm(), layer, x, own, mask=mask)
        return np.sum(weights * (y @ tree["head"]["kernel"] + tree["head"]["bias"])[..., 0])

    new, sums = STEP(learner, start(learner, params, carry), Batch(x, weights, mask, weights))
    assert float(sums["loss"]) == pytest.approx(loss(params), abs=1e-12)
    slope = jax.tree.map(lambda a, b: (a - np.asarray(b)) * 5.0, params, new.params)
    assert_slopes(loss, (params,), (slope,))


# Streams: chunks of `Rows` through the training loop.

SIZE, ROWS, LENGTH = 16, 2, 3  # steps of all documents; rows and steps of one chunk


def stream_of(lengths=(SIZE,), seed=3):
    """Documents of random numbers, targets too, one after another; all streams of one shape."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths, np.int32)
    inputs, targets = rng.normal(size=(2, SIZE, 1)).astype(np.float32)
    return as_stream(Rows(inputs, targets, np.cumsum(lengths) - lengths, lengths))


def cut_chunk(key, ids, data):
    return chunk(data, ids[:2], ids[2], ROWS, LENGTH)


def chunk_ids(numbers, part=(0, SIZE), accumulate=1):
    ids = [[*part, number] for number in numbers]
    return np.array(ids, np.int32).reshape(-1, accumulate, 3)


MEMORY = labeller(LSTM(3))
PARAMS = module_params(MEMORY, np.zeros((1, 1, 1), np.float32), scale=0.8)["params"]
FIXED = Learner(MEMORY, optim.make("sgd", 0.0), squared_error, shown)
MOVING = Learner(MEMORY, optim.make("sgd", 0.5, momentum=0.9), squared_error, total)


def streaming(learner, fill=7.0):
    """The first state. What stands in its carry must not matter."""
    carry = {"layer_0": LSTMCarry(*(jnp.full((ROWS, 3), fill) for _ in "hc"))}
    return start(learner, PARAMS, carry)


def follow(learner, state, numbers, data, part=(0, SIZE)):
    """One chunk a call: (last state, sums of each)."""
    every = []
    for ids in chunk_ids(numbers, part):
        state, sums = TRAIN(learner, cut_chunk, state, jnp.int32(1), ids[None], data)
        every.append(jax.device_get(sums))
    return state, every


def walk(data, first, length):
    """(outputs [T, 1], final carry) of a part of the stream, by the NumPy loop."""
    own = slice(first, first + length)
    x, reset = data.inputs[own][None], data.reset[own][None].copy()
    reset[:, :1] = True
    carry = {"h": np.zeros((1, 3)), "c": np.zeros((1, 3))}
    y, final = reference.run(reference.lstm(), PARAMS["stack"]["layer_0"], x, carry, reset=reset)
    return (y @ PARAMS["head"]["kernel"] + PARAMS["head"]["bias"])[0], final


documents = st.lists(st.integers(1, 7), max_size=6).map(
    lambda lengths: [n for n, end in zip(lengths, np.cumsum(lengths), strict=True) if end < SIZE]
)


@given(documents=documents, skip=st.integers(0, 4), size=st.integers(1, SIZE - 4))
def test_G02_G07_chunks_equal_one_pass_over_each_document(documents, skip, size):
    """Rows that end inside a chunk or before it, borders of documents in its middle."""
    data = stream_of([*documents, SIZE - sum(documents)])
    count = chunks(size, ROWS, LENGTH)
    state, every = follow(FIXED, streaming(FIXED), range(count), data, (skip, size))
    outputs = np.concatenate([sums["metric"] for sums in every], axis=1)
    lengths = [size // ROWS + (row < size % ROWS) for row in range(ROWS)]
    for row, length in enumerate(lengths):
        wanted, final = walk(data, skip + sum(lengths[:row]), length)
        np.testing.assert_allclose(outputs[row, :length], wanted, atol=1e-5)
        for name, leaf in state.carry["layer_0"]._asdict().items():
            np.testing.assert_allclose(leaf[row], final[name][0], atol=1e-5)


def test_G02_ragged_rows_in_chunks_of_2_2_1_equal_one_pass_of_5():
    """Also where a chunk has no scored term, and from a memory that was brought in."""
    rng, lengths = np.random.default_rng(0), np.array([5, 4, 3, 2, 1, 0])
    x = rng.normal(size=(6, 6, 1)).astype(np.float32)
    mask = np.arange(6) < lengths[:, None]
    carry = {"layer_0": LSTMCarry(*rng.normal(size=(2, 6, 3)).astype(np.float32))}
    weights = mask.astype(np.float32)
    weights[:, 2:4] = 0
    state, found = start(FIXED, PARAMS, carry), []
    for first in (0, 2, 4):
        own = slice(first, first + 2)
        batch = Batch(x[:, own], x[:, own], mask[:, own], weights[:, own])
        state, sums = STEP(FIXED, state, batch)
        found.append(sums["metric"])
    y, final = MEMORY.apply({"params": PARAMS}, x[:, :5], carry, mask=mask[:, :5])
    scored = [0, 1, 4]
    np.testing.assert_allclose(np.concatenate(found, 1)[:, scored], y[:, scored], atol=1e-6)
    assert_close(state.carry, final, 1e-6)


def test_G04_every_epoch_starts_from_the_initial_carry():
    """With parameters that stand still two epochs have the same losses, to the bit."""
    _, every = follow(FIXED, streaming(FIXED), [0, 1, 2, 0, 1, 2], stream_of())
    losses = [float(sums["loss"]) for sums in every]
    assert losses[:3] == losses[3:] and len(set(losses)) == 3
    _, (cold,) = follow(FIXED, streaming(FIXED, 0.0), [1], stream_of())
    assert float(cold["loss"]) != losses[1]  # inside an epoch, memory does go on


# Borders inside a row.


def test_G07_F1_reset_through_the_step(x64):
    batch = pieces(X, [3])[0]._replace(reset=np.array([[False, True, False]]))
    new, sums = STEP(F1, f1_state(), batch)
    values = [0.833655, -0.716298, 0.237243]
    np.testing.assert_allclose(sums["metric"][0, :, 0], values, atol=1e-6)
    h0, h1, h2 = values
    slope = (1 - h0**2) * H0 + (1 - h2**2) * h1  # the first real step after a reset has h = 0
    assert recurrent(new) == pytest.approx(U - RATE * slope / 3, abs=1e-6)

    inputs = np.float32([[[1.0], [-1.0], [0.5]]])
    data = as_stream(Rows(inputs[0], np.zeros(3, np.float32), np.array([0, 1]), np.array([1, 2])))
    cut = chunk(data, np.array([0, 3], np.int32), np.int32(0), 1, 3)
    _, sums = STEP(F1, f1_state(), jax.device_get(cut))
    np.testing.assert_allclose(sums["metric"][0, :, 0], [0.800499, *values[1:]], atol=1e-6)


def test_G07_no_gradient_crosses_a_border(x64):
    """Neither of the loss nor of the parameters that the step returns."""
    batch = pieces(X, [3], [0, 0, 1.0])[0]

    @jit
    def sensitivity(x, reset):
        def outcome(x):
            step = batch._replace(inputs=x, reset=reset)
            new, sums = train_step(F1._replace(metric=total), f1_state(), step)
            return sums["loss"], new.params["stack"]["layer_0"]["recurrent"]["kernel"][0, 0]

        return jax.jacrev(outcome)(x)

    for at in range(3):
        loss, moved = (
            np.asarray(a)[0, :, 0] for a in sensitivity(batch.inputs, at == np.arange(3)[None])
        )
        assert not loss[:at].any() and loss[at:].all()
        assert not moved[:at].any() and moved[at:].all() == (at < 2)  # from h = 0 none but x[2]


# Updates that several chunks make up, and those that are skipped.


def test_D05_accumulated_chunks_equal_one_big_batch_of_them():
    """Clipped once: the same chunks beside each other, each from the memory before it."""
    clipping = MOVING._replace(optimizer=optim.make("sgd", 0.5, clip=0.1, momentum=0.9), clip=0.1)
    data, joint = stream_of([5, 11]), clipping._replace(accumulate=3)
    ids = chunk_ids(range(3), accumulate=3)
    small, parts = TRAIN(joint, cut_chunk, streaming(joint), jnp.int32(1), ids, data)

    every = [jax.device_get(cut_chunk(None, of_chunk, data)) for of_chunk in ids[0]]
    big = jax.tree.map(lambda *leaves: np.concatenate(leaves), *every)
    before = [[walk(data, 8 * row, LENGTH * j)[1] for row in range(ROWS)] for j in range(3)]
    carry = LSTMCarry(*(np.float32([c[n][0] for rows in before for c in rows]) for n in ("h", "c")))
    big, whole = STEP(clipping, start(clipping, PARAMS, {"layer_0": carry}), big)
    assert_close((small.params, small.opt_state), (big.params, big.opt_state), 1e-6)
    alike = ("loss", "weight", "grad_norm", "clipped", "real", "slots", "lengths")
    assert_close({k: parts[k] for k in alike}, {k: whole[k] for k in alike}, 1e-6)
    assert float(parts["clipped"]) == 1
    for row in range(ROWS):
        final = walk(data, 8 * row, 8)[1]
        np.testing.assert_allclose(small.carry["layer_0"].c[row], final["c"][0], atol=1e-5)


def test_D03_skipped_chunk_leaves_memory_and_parameters():
    learner = MOVING._replace(max_bad_steps=2)
    good, poisoned = stream_of(), stream_of()
    poisoned.inputs[LENGTH] = np.nan  # in chunk 1
    before, _ = follow(learner, streaming(learner), [0], good)
    skipped, _ = follow(learner, before, [1], poisoned)
    expected = before.replace(step=before.step + 1, bad_steps=jnp.int32(1))
    equal(skipped.replace(key=None), expected.replace(key=None))
