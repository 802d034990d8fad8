"""Rows and streams: what stands in each batch, against a plain walk through the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmodels import optim
from seqmodels.cells import RNN
from seqmodels.data.epochs import Epochs, by_length, in_order
from seqmodels.data.rows import (
    NO_ROW,
    Rows,
    as_stream,
    chunk,
    chunks,
    lengths_to,
    pack,
    take,
)
from seqmodels.layers import Stack
from seqmodels.losses import cross_entropy
from seqmodels.metrics import accuracy, mean
from seqmodels.models import SequenceClassifier
from seqmodels.training.step import Learner, eval_steps

STEPS, DOCUMENTS = 54, 6  # room for any example below: one program serves all
documents = st.lists(st.integers(1, 9), min_size=1, max_size=DOCUMENTS)
every_target = pytest.mark.parametrize("targets", ["next", "step", "row"])
JIT_TAKE = jax.jit(take, static_argnums=(2, 3))
JIT_CHUNK = jax.jit(chunk, static_argnums=(3, 4))


def rows_of(lengths, targets="next"):
    """Documents of the numbers 1, 2, 3, ..., one after another, and zeros up to STEPS."""
    lengths = np.array([*lengths, *[0] * (DOCUMENTS - len(lengths))], np.int32)
    data = np.arange(1, STEPS + 1, dtype=np.int32) * (np.arange(STEPS) < lengths.sum())
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    wanted = {"next": None, "step": 10 * data, "row": 100 * lengths}[targets]
    return Rows(data.astype(np.int32), wanted, starts, lengths)


# Whole rows.


@given(
    lengths=documents,
    ids=st.lists(st.integers(-1, DOCUMENTS - 1), min_size=4, max_size=4),
    width=st.sampled_from([9, 12]),
)
@every_target
def test_take_is_a_plain_walk_through_the_rows(targets, lengths, ids, width):
    rows = rows_of(lengths, targets)
    batch = jax.device_get(JIT_TAKE(rows, np.array(ids, np.int32), width, targets != "row"))
    assert batch.inputs.shape == (len(ids), width) and batch.reset is None
    for i, row in enumerate(ids):
        n = 0 if row == NO_ROW else rows.lengths[row]
        text = [] if row == NO_ROW else rows.inputs[rows.starts[row] :][:n].tolist()
        pad = [0] * (width - n)
        assert batch.inputs[i].tolist() == text + pad
        assert batch.mask[i].tolist() == [True] * n + [False] * (width - n)
        if targets == "row":
            assert batch.weights[i] == (row != NO_ROW)
            assert row == NO_ROW or batch.targets[i] == 100 * n
        elif targets == "step":
            assert batch.targets[i].tolist() == [10 * t for t in text] + pad
            assert batch.weights[i].tolist() == [1.0] * n + [0.0] * (width - n)
        else:  # the next input; the last one has none
            scored = max(0, n - 1)
            assert batch.targets[i].tolist() == text[1:] + [0] * (width - scored)
            assert batch.weights[i].tolist() == [1.0] * scored + [0.0] * (width - scored)


def test_take_multiplies_weights_and_widens_features():
    data, starts, lengths = pack([np.full((n, 3), n, np.uint8) for n in (1, 2)])
    rows = Rows(
        data, np.arange(3, dtype=np.int32), starts, lengths, np.array([0.5, 0, 2], np.float32)
    )
    batch = take(rows, np.array([1, 0], np.int32), 2, per_step=True)
    assert batch.inputs.dtype == jnp.float32 and batch.inputs[0, 1].tolist() == [2.0] * 3
    assert batch.weights.tolist() == [[0.0, 2.0], [0.5, 0.0]]


def test_J07_length_ends_with_the_first_end_mark():
    ids = np.array([[5, 6, 1, 0], [5, 6, 7, 8], [1, 0, 0, 0], [5, 1, 6, 1]])
    assert lengths_to(ids, end=1).tolist() == [3, 4, 1, 2]


# Streams.


def test_G03_row_i_of_the_next_chunk_continues_row_i():
    rows = Rows(np.arange(12, dtype=np.int32), None, np.array([0]), np.array([12]))
    first, second = (chunk(as_stream(rows), np.array([0, 12]), np.int32(j), 2, 3) for j in (0, 1))
    assert first.inputs.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert second.inputs.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert first.targets.tolist() == [[1, 2, 3], [7, 8, 9]]  # 3 lies across the border
    assert second.targets[:, :2].tolist() == [[4, 5], [10, 11]]
    assert first.reset.tolist() == [[True, False, False]] * 2
    assert not second.reset.any()


def test_L03_stream_of_12_tokens_in_2_rows_has_10_targets():
    rows = Rows(np.arange(12, dtype=np.int32), None, np.array([0]), np.array([12]))
    stream = as_stream(rows)
    weights = [chunk(stream, np.array([0, 12]), jnp.int32(j), 2, 3).weights for j in (0, 1)]
    assert float(sum(w.sum() for w in weights)) == 10
    assert weights[1].tolist() == [[1, 1, 0], [1, 1, 0]]


@given(
    lengths=documents,
    batch=st.sampled_from([1, 2, 3]),
    steps=st.sampled_from([1, 4]),
    skip=st.integers(0, 2),
)
@pytest.mark.parametrize("targets", ["next", "step"])
def test_chunks_cover_every_step_once_in_order(targets, lengths, batch, steps, skip):
    """Also of a part that starts in the middle of the data."""
    rows = rows_of(lengths, targets)
    total = sum(lengths)
    skip = min(skip, total - 1)
    part, stream = np.array([skip, total - skip], np.int32), as_stream(rows)
    found = [
        jax.device_get(JIT_CHUNK(stream, part, np.int32(j), batch, steps))
        for j in range(chunks(total - skip, batch, steps))
    ]
    inputs, wanted, mask, weights, reset = (
        np.concatenate([c[k] for c in found], axis=1) for k in range(5)
    )
    read = np.concatenate([inputs[i][mask[i]] for i in range(batch)])
    assert read.tolist() == rows.inputs[skip:total].tolist()
    assert not inputs[~mask].any() and not weights[~mask].any()
    starts = set((rows.starts[: len(lengths)] + 1).tolist())  # numbers that start a document
    for i in range(batch):
        row, n = inputs[i], mask[i].sum()
        assert mask[i][:n].all()  # padding comes last
        for t in range(n):
            assert reset[i, t] == (t == 0 or row[t] in starts)
            if targets == "step":
                assert (wanted[i, t], weights[i, t]) == (10 * row[t], 1)
            elif t + 1 < n:
                assert (wanted[i, t], weights[i, t]) == (row[t + 1], 1)
            else:
                assert weights[i, t] == 0


# Epochs.


@pytest.mark.parametrize("size", [3, 4, 7, 10, 16])
def test_J02_L01_every_example_counts_once_whatever_the_batch_size(size):
    """10 examples of which 7 are right: 0.7, never a mean of batch means."""
    net = Learner(
        model=SequenceClassifier(Stack((RNN(2),)), 3),
        optimizer=optim.make("sgd", 0.1),
        loss=cross_entropy,
        metric=accuracy,
    )
    params = net.model.init(jax.random.key(0), jnp.zeros((1, 2, 1)))["params"]
    params["head"] = {"kernel": jnp.zeros((2, 3)), "bias": jnp.array([0.0, 5.0, 0.0])}
    labels = np.array([1, 1, 0, 1, 1, 2, 1, 1, 0, 1], np.int32)
    data = Rows(np.zeros((20, 1)), labels, np.arange(0, 20, 2), np.full(10, 2, np.int32))
    ids = in_order(np.arange(10), size)
    sums, _ = eval_steps(
        net,
        lambda key, ids, data: take(data, ids, 2, per_step=False),
        params,
        jax.random.key(0),
        jnp.int32(len(ids)),
        jnp.asarray(ids),
        jax.tree.map(jnp.asarray, data),
    )
    assert float(sums["weight"]) == 10
    assert mean(sums["metric"], sums["weight"]) == pytest.approx(0.7)
    right, wrong = np.log(np.exp(5) + 2) - 5, np.log(np.exp(5) + 2)
    assert mean(sums["loss"], sums["weight"]) == pytest.approx(0.7 * right + 0.3 * wrong, rel=1e-5)


bucketed = st.dictionaries(st.integers(1, 50), st.integers(1, 12), min_size=1, max_size=4)


@given(sizes=bucketed, size=st.integers(1, 5), seed=st.integers(0, 3), shuffle=st.booleans())
def test_J01_I12_every_epoch_has_every_row_once_at_its_width(sizes, size, seed, shuffle):
    edges = np.cumsum([0, *sizes.values()])
    buckets = {w: np.arange(a, b) for w, a, b in zip(sizes, edges, edges[1:], strict=False)}
    epochs = Epochs(buckets, size, shuffle)
    for epoch in range(3):
        steps = range(epoch * epochs.per_epoch, (epoch + 1) * epochs.per_epoch)
        read = {w: [] for w in buckets}
        for step in steps:
            ids = epochs.ids(seed, step)
            read[epochs.width(step)].extend(ids[ids != NO_ROW].tolist())
        assert {w: sorted(ids) for w, ids in read.items()} == {
            w: rows.tolist() for w, rows in buckets.items()
        }
        if not shuffle:
            assert all(ids == sorted(ids) for ids in read.values())


def test_J01_order_depends_on_seed_and_epoch_and_repeats():
    def ids(seed, epoch):
        epochs = Epochs({5: np.arange(60), 9: np.arange(60, 99)}, 8)
        return [
            epochs.ids(seed, epoch * epochs.per_epoch + i).tolist() for i in range(epochs.per_epoch)
        ]

    assert ids(0, 0) == ids(0, 0)
    assert ids(0, 0) != ids(0, 1) and ids(0, 0) != ids(1, 0)
    epochs = Epochs({5: np.arange(60), 9: np.arange(60, 99)}, 8)
    again = Epochs(epochs.buckets, 8)
    at_once = [again.width(step) for step in reversed(range(26))]  # any access order
    assert at_once[::-1] == [epochs.width(step) for step in range(26)]


def test_J02_buckets_hold_what_fits_and_refuse_what_does_not():
    lengths = np.array([3, 10, 1, 4, 7])
    found = by_length(np.arange(5), lengths, (10, 4, 2))
    assert {w: ids.tolist() for w, ids in found.items()} == {2: [2], 4: [0, 3], 10: [1, 4]}
    with pytest.raises(ValueError, match="the longest row has 10 steps, the widest bucket 9"):
        by_length(np.arange(5), lengths, (9, 4))
