"""Tasks: one contract for all of them, and for each an independent reading of its definition."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmodels.losses import LOSSES
from seqmodels.metrics import METRICS, mean
from seqmodels.tasks import TASKS, Adding, Copy, Order, Parity

# Every task with one length for all rows and, where it has them, with drawn lengths.
CASES = {
    "adding": (Adding(), 8),
    "adding-drawn": (Adding(min_length=2), 9),
    "order": (Order(), 100),
    "copy": (Copy(), 5),
    "copy-drawn": (Copy(min_length=1), 50),
    "parity": (Parity(), 8),
    "parity-drawn": (Parity(min_length=1), 7),
}
ROWS = 2000
QUICK = {"xla_backend_optimization_level": 0}  # nearly all of the time here is compilation

each_case = pytest.mark.parametrize(("task", "length"), CASES.values(), ids=CASES.keys())
each_task = pytest.mark.parametrize("name", TASKS)


@functools.cache
def sampler(task):
    return jax.jit(task.sample, static_argnums=(1, 2), compiler_options=QUICK)


@functools.cache
def drawn(task, length, batches=1):
    """Batches of 2000 rows as NumPy arrays in one, and n, the number of real steps of each row."""
    parts = [sampler(task)(jax.random.key(seed), ROWS, length) for seed in range(batches)]
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return batch, batch.mask.sum(axis=1)


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def differ(left, right):
    return any(not np.array_equal(a, b) for a, b in zip(left[:2], right[:2], strict=True))


# The contract


def test_every_task_has_a_case():
    assert {name.split("-")[0] for name in CASES} == set(TASKS)
    assert {type(task) for task, _ in CASES.values()} == set(TASKS.values())


@each_case
def test_shapes_dtypes_and_spec(task, length):
    batch, n = drawn(task, length)
    steps, spec = task.steps(length), task.spec
    assert batch.inputs.shape == (ROWS, steps, spec.inputs) and batch.inputs.dtype == np.float32
    assert batch.mask.shape == (ROWS, steps) and batch.mask.dtype == np.bool_
    assert batch.weights.shape == ((ROWS, steps) if spec.per_step else (ROWS,))
    assert batch.weights.dtype == np.float32
    assert batch.reset is None and not spec.tokens
    assert spec.loss in LOSSES and spec.metric in METRICS
    if spec.loss == "cross_entropy":
        assert batch.targets.shape == batch.weights.shape and batch.targets.dtype == np.int32
        assert batch.targets.min() == 0 and batch.targets.max() == spec.outputs - 1
    else:
        assert batch.targets.shape == (*batch.weights.shape, spec.outputs)
        assert batch.targets.dtype == np.float32


@each_case
def test_padding_is_a_suffix_without_inputs_or_weight(task, length):
    batch, n = drawn(task, length)
    np.testing.assert_array_equal(batch.mask, np.arange(task.steps(length)) < n[:, None])
    assert not batch.inputs[~batch.mask].any()
    weights = batch.mask if task.spec.per_step else np.ones(ROWS)
    np.testing.assert_array_equal(batch.weights, weights)


@each_case
def test_lengths_cover_their_range(task, length):
    _, n = drawn(task, length)
    longest = task.steps(length)
    if isinstance(task, Order):
        expected = range(length, longest + 1)
    else:
        shortest = length if task.min_length is None else task.min_length
        expected = range(shortest + longest - length, longest + 1)
    values, counts = np.unique(n, return_counts=True)
    np.testing.assert_array_equal(values, expected)
    mean_count = ROWS / len(expected)
    assert np.all(abs(counts - mean_count) < 5 * math.sqrt(mean_count))


@each_case
def test_randomness_comes_from_the_key_alone(task, length):
    once = sampler(task)(jax.random.key(3), ROWS, length)
    equal(once, sampler(task)(jax.random.key(3), ROWS, length))
    assert differ(once, sampler(task)(jax.random.key(4), ROWS, length))


@each_task
def test_eager_vmap_over_keys_equals_a_jitted_loop(name):
    task, length = CASES[name]
    keys = jax.random.split(jax.random.key(5), 2)
    together = jax.vmap(lambda key: task.sample(key, ROWS, length))(keys)
    for i, key in enumerate(keys):
        alone = sampler(task)(key, ROWS, length)
        equal(jax.tree.map(lambda x, i=i: x[i], together), alone)


def layout(task, length):
    return jax.eval_shape(lambda key: task.sample(key, 3, length), jax.random.key(0))


@each_case
def test_x64_changes_no_dtype(task, length, x64):
    wide = layout(task, length)
    with jax.enable_x64(False):
        assert wide == layout(task, length)


@each_task
def test_empty_batch(name):
    task, length = CASES[name]
    assert sampler(task)(jax.random.key(0), 0, length).inputs.shape[0] == 0


@each_case
def test_tasks_are_values(task, length):
    assert hash(task) == hash(dataclasses.replace(task)) and task == dataclasses.replace(task)


@given(
    name=st.sampled_from(["adding", "copy", "parity"]),
    length=st.integers(-2, 40),
    shortest=st.none() | st.integers(-2, 42),
)
def test_lengths_are_refused_exactly_where_impossible(name, length, shortest):
    least = TASKS[name].least
    possible = least <= length if shortest is None else least <= shortest <= length
    try:
        task = TASKS[name](min_length=shortest)
        assert layout(task, length).mask.shape == (3, task.steps(length))
        assert 0 < task.chance(length) <= 1
    except ValueError:
        assert not possible
    else:
        assert possible


@settings(max_examples=5)  # each example compiles
@given(data=st.data(), name=st.sampled_from(sorted(TASKS)))
def test_targets_follow_from_the_inputs_at_any_length(data, name):
    least = TASKS[name].least
    length = data.draw(st.integers(least, 30), label="length")
    shortest = None
    if name != "order":
        shortest = data.draw(st.none() | st.integers(least, length), label="min_length")
    task = TASKS[name](min_length=shortest)
    batch = jax.tree.map(np.asarray, sampler(task)(jax.random.key(length), 8, length))
    assert batch.mask.shape == (8, task.steps(length))
    np.testing.assert_allclose(batch.targets, READINGS[type(task)](batch), atol=1e-6)


# What each definition says, read off the inputs row by row


def adding_targets(batch):
    targets = []
    for row, mask in zip(batch.inputs, batch.mask, strict=True):
        n = int(mask.sum())
        marked = [t for t in range(n) if row[t, 1] == 1]
        assert len(marked) == 2 and marked[0] < n // 2 <= marked[1]
        assert set(np.unique(row[:, 1])) <= {0.0, 1.0}
        assert np.all((row[:, 0] >= 0) & (row[:, 0] < 1))
        targets.append([row[marked[0], 0] + row[marked[1], 0]])
    return targets


def order_targets(batch):
    targets = []
    for row, mask in zip(batch.inputs, batch.mask, strict=True):
        word = "".join("EBabcdXY"[step.argmax()] for step in row[mask])
        assert np.all(row[mask].sum(axis=1) == 1)
        assert word[0] == "E" and word[-1] == "B" and set(word[1:-1]) <= set("abcdXY")
        pair = "".join(symbol for symbol in word if symbol in "XY")
        targets.append(["XX", "XY", "YX", "YY"].index(pair))
    return targets


def copy_targets(batch):
    targets = []
    for row, mask in zip(batch.inputs, batch.mask, strict=True):
        assert np.all(row[mask].sum(axis=1) == 1)
        ids = row[mask].argmax(axis=1).tolist()
        delay = len(ids) - 20
        assert max(ids[:10]) < 8
        assert ids[10:] == [8] * (delay - 1) + [9] + [8] * 10
        answer = [8] * (delay + 10) + ids[:10]
        targets.append(answer + [8] * (len(mask) - len(answer)))
    return targets


def parity_targets(batch):
    assert np.all(batch.inputs.sum(axis=2) == batch.mask)
    return [int(row[:, 1].sum()) % 2 for row in batch.inputs]


READINGS = {
    Adding: adding_targets,
    Order: order_targets,
    Copy: copy_targets,
    Parity: parity_targets,
}


@each_case
def test_targets_follow_from_the_inputs(task, length):
    batch, _ = drawn(task, length)
    batch = jax.tree.map(lambda leaf: leaf[:500], batch)
    np.testing.assert_array_equal(batch.targets, np.asarray(READINGS[type(task)](batch)))


def test_adding_markers_cover_each_half():
    batch, _ = drawn(Adding(), 8)
    first, second = np.nonzero(batch.inputs[:, :, 1])[1].reshape(ROWS, 2).T
    together = np.histogram2d(first, second, bins=[range(5), range(4, 9)])[0]
    np.testing.assert_allclose(together / ROWS, np.full((4, 4), 1 / 16), atol=0.025)
    numbers = batch.inputs[:, :, 0]
    assert abs(numbers.mean() - 0.5) < 0.03 and abs(numbers.var() - 1 / 12) < 0.01


def test_order_places_and_lengths_are_those_of_the_paper():
    batch, n = drawn(Order(), 100)
    rows, places = np.nonzero(batch.inputs[:, :, 6:].any(axis=2))
    places = places[np.argsort(rows, kind="stable")].reshape(ROWS, 2)
    assert set(places[:, 0]) == set(range(10, 21))
    assert set(places[:, 1]) == set(range(50, 61))
    assert set(n) == set(range(100, 111)) and batch.mask.shape == (ROWS, 110)
    assert np.all(abs(np.corrcoef([*places.T, n, batch.targets]) - np.eye(4)) < 0.1)
    noise = batch.inputs[:, 21:50, 2:6].mean(axis=(0, 1))
    np.testing.assert_allclose(noise, 0.25, atol=0.01)


def test_copy_symbols_are_uniform():
    batch, _ = drawn(Copy(), 5)
    np.testing.assert_allclose(batch.inputs[:, :10, :8].mean(axis=0), 1 / 8, atol=0.04)


# What is refused

impossible = [
    (lambda: Adding(min_length=1), "min_length must be at least 2, got 1"),
    (lambda: Copy(min_length=0), "min_length must be at least 1, got 0"),
    (lambda: Parity(min_length=-3), "min_length must be at least 1, got -3"),
    (lambda: Order(min_length=50), "min_length must be None for temporal order.* got 50"),
    (lambda: Adding().steps(1), "length must be at least 2, got 1"),
    (lambda: Order().steps(4), "length must be at least 5, got 4"),
    (lambda: Copy().chance(0), "length must be at least 1, got 0"),
    (lambda: Parity().chance(-1), "length must be at least 1, got -1"),
    (lambda: Adding(min_length=30).chance(20), "min_length must be from 2 to 20, got 30"),
    (lambda: Parity(min_length=9).steps(8), "min_length must be from 1 to 8, got 9"),
    (lambda: Copy(3).sample(jax.random.key(0), 2, 2), "min_length must be from 1 to 2, got 3"),
    (lambda: Order().sample(jax.random.key(0), -1, 10), "batch must be at least 0, got -1"),
]


@pytest.mark.parametrize(("call", "message"), impossible, ids=[m for _, m in impossible])
def test_impossible_values_are_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()


# Chance levels (K07)


def test_K07_chance_levels():
    assert Adding().chance(100) == pytest.approx(0.166667, abs=5e-7)
    assert Copy().chance(100) == pytest.approx(0.173287, abs=5e-7)
    assert Copy(min_length=1).chance(199) == pytest.approx(0.173287, abs=5e-7)  # mean delay 100
    assert Order().chance(100) == 0.25
    assert Parity().chance(20) == Parity(min_length=1).chance(20) == 0.5


def score(task, length, predict, batches):
    batch, _ = drawn(task, length, batches)
    return mean(*METRICS[task.spec.metric].function(predict(batch), batch.targets, batch.weights))


@pytest.mark.parametrize("name", ["adding", "adding-drawn"])
def test_K07_mean_as_answer_scores_chance_in_adding(name):
    task, length = CASES[name]
    mse = score(task, length, lambda batch: np.ones_like(batch.targets), batches=10)
    assert mse == pytest.approx(task.chance(length), abs=0.006)  # four standard errors


@pytest.mark.parametrize("name", ["order", "parity", "parity-drawn"])
def test_K07_no_constant_answer_beats_chance(name):
    task, length = CASES[name]
    for answer in np.eye(task.spec.outputs, dtype=np.float32):
        accuracy = score(task, length, lambda batch, a=answer: np.tile(a, (5 * ROWS, 1)), 5)
        assert accuracy == pytest.approx(task.chance(length), abs=0.02)


@pytest.mark.parametrize("name", ["copy", "copy-drawn"])
def test_K07_uniform_guess_at_the_right_time_scores_chance_in_copy(name):
    def predict(batch):
        due = (batch.targets < 8)[:, :, None]
        blank = np.arange(9) == 8
        return np.where(due != blank, 0, -np.inf).astype(np.float32)

    # Delays drawn from 1..50 make the mean over rows 11 % larger: the pooled score is not that.
    task, length = CASES[name]
    assert score(task, length, predict, 1) == pytest.approx(task.chance(length), rel=0.02)
