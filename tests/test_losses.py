"""Losses and metrics: values by hand, what no weight hides, and one division at the end."""

import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.test_util import check_grads

from seqmodels.losses import LOSSES, binary_cross_entropy, cross_entropy, squared_error
from seqmodels.metrics import METRICS, accuracy, bits, mean, perplexity

PLAIN = LOSSES | {name: metric.function for name, metric in METRICS.items()}
FUNCTIONS = {name: jax.jit(function) for name, function in PLAIN.items()}
SLOPES = {  # by predictions and by weights
    name: jax.jit(jax.grad(lambda p, t, w, f=function: f(p, t, w)[0], argnums=(0, 2)))
    for name, function in PLAIN.items()
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
each_loss = pytest.mark.parametrize("name", LOSSES)

LABELS = {"cross_entropy", "accuracy", "bits"}  # one label for each term; else a vector


def example(name, shape=(3, 4), width=5, seed=0):
    """Random predictions [*shape, width], targets and fractional weights that suit `name`."""
    draw = np.random.default_rng(seed)
    predictions = draw.normal(size=(*shape, width)).astype(np.float32)
    if name in LABELS:
        targets = draw.integers(0, width, shape).astype(np.int32)
    else:
        targets = draw.integers(0, 2, (*shape, width)).astype(np.float32)
    return predictions, targets, draw.uniform(0.5, 2, shape).astype(np.float32)


def by_hand(name, predictions, targets, weights):
    """The same in NumPy loops and float64."""
    total = 0.0
    for place in np.ndindex(weights.shape):
        p, t = predictions[place].astype(np.float64), targets[place]
        if name in LABELS:
            nats = math.log(sum(math.exp(v) for v in p)) - p[t]
            term = {"bits": nats / math.log(2), "accuracy": float(max(p) == p[t])}.get(name, nats)
        elif name == "binary_cross_entropy":
            s = 1 / (1 + np.exp(-p))
            term = -np.log(np.where(t == 1, s, 1 - s)).sum()
        else:
            term = sum((a - b) ** 2 for a, b in zip(p, t, strict=True)) / len(p)
        total += weights[place] * term
    return total, weights.sum(dtype=np.float64)


@each_function
@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_values_by_hand(name, shape):
    given_ = example(name, shape)
    np.testing.assert_allclose(FUNCTIONS[name](*given_), by_hand(name, *given_), rtol=1e-5)


def test_known_values():
    one = np.ones((1,), np.float32)
    total, _ = cross_entropy(np.zeros((1, 8), np.float32), np.array([3]), one)
    assert float(total) == pytest.approx(math.log(8))
    total, _ = bits(np.zeros((1, 8), np.float32), np.array([3]), one)
    assert float(total) == pytest.approx(3.0)
    total, _ = squared_error(np.array([[1.0, 5.0]], np.float32), np.array([[3.0, 5.0]], "f4"), one)
    assert float(total) == 2.0
    total, _ = binary_cross_entropy(np.zeros((1, 88), np.float32), np.ones((1, 88), bool), one)
    assert float(total) == pytest.approx(88 * math.log(2))


def test_extreme_logits_stay_finite():
    one = np.ones((1,), np.float32)
    far = np.array([[1e30, -1e30]], np.float32)
    assert float(cross_entropy(far, np.array([0]), one)[0]) == 0.0
    assert float(binary_cross_entropy(far, np.array([[1.0, 0.0]], "f4"), one)[0]) == 0.0
    assert float(cross_entropy(far, np.array([1]), one)[0]) == pytest.approx(2e30)


@each_loss
def test_gradients_agree_with_differences(name, x64):
    predictions, targets, weights = example(name)
    predictions, weights = jnp.asarray(predictions, "f8"), jnp.asarray(weights, "f8")

    def loss(predictions):
        return FUNCTIONS[name](predictions, targets, weights)[0]

    check_grads(loss, (predictions,), order=1, modes=["rev"], eps=1e-6)


# What has no weight reaches nothing


def spoilt(name):
    """An example whose terms 1 and 2 have weight 0, clean and with rubbish there."""
    predictions, targets, weights = example(name, (4,))
    weights[1:3] = 0
    bad_predictions, bad_targets = predictions.copy(), targets.copy()
    bad_predictions[1:3] = [[np.nan, np.inf, -np.inf, 3e38, 0], [np.inf] * 5]
    bad_targets[1:3] = [-1, 2**31 - 1] if name in LABELS else [[np.nan, np.inf, -7, 1e38, 0]] * 2
    return (predictions, targets, weights), (bad_predictions, bad_targets, weights)


@each_function
def test_rubbish_without_weight_changes_no_value(name):
    clean, bad = spoilt(name)
    for value, expected in zip(FUNCTIONS[name](*bad), FUNCTIONS[name](*clean), strict=True):
        assert np.isfinite(value) and float(value) == float(expected)


@each_loss
def test_rubbish_without_weight_changes_no_gradient(name):
    clean, bad = spoilt(name)
    slope, by_weight = SLOPES[name](*bad)
    np.testing.assert_array_equal(slope, SLOPES[name](*clean)[0])
    assert not np.any(slope[1:3]) and np.all(np.any(slope[::3], axis=1))
    assert np.all(np.isfinite(by_weight))


@pytest.mark.parametrize("label", [-1, 3, 300])
@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.int64])
def test_label_out_of_range_surfaces(label, dtype):
    logits, weights = np.zeros((2, 3), np.float32), np.ones((2,), np.float32)
    targets = np.array([0, label], dtype)
    for function in (cross_entropy, accuracy, bits):
        assert np.isnan(function(logits, targets, weights)[0])
    slope = jax.grad(lambda p: cross_entropy(p, targets, weights)[0])(logits)
    assert np.isfinite(slope[0]).all() and np.isnan(slope[1]).all()


def test_labels_of_a_narrow_dtype_reach_beyond_it():
    logits = np.zeros((1, 300), np.float32)
    total, _ = cross_entropy(logits, np.array([255], np.uint8), np.ones((1,), np.float32))
    assert float(total) == pytest.approx(math.log(300))


def test_binary_targets_out_of_range_surface():
    logits, one = np.zeros((1, 2), np.float32), np.ones((1,), np.float32)
    for wrong in (-0.1, 1.5, np.nan):
        targets = np.array([[0.0, wrong]], np.float32)
        assert np.isnan(binary_cross_entropy(logits, targets, one)[0])
    half, _ = binary_cross_entropy(logits, np.full((1, 2), 0.5, np.float32), one)
    assert float(half) == pytest.approx(2 * math.log(2))


def test_a_broken_model_has_no_accuracy():
    logits = np.array([[np.nan, 0.0], [0.0, 1.0]], np.float32)
    assert np.isnan(accuracy(logits, np.array([0, 1]), np.ones((2,), np.float32))[0])


@each_function
def test_shapes_that_would_broadcast_are_refused(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside tests
    predictions, targets, weights = example(name, (3, 3), 3)
    for wrong in ((predictions, targets, weights[0]), (predictions, targets[0], weights)):
        with pytest.raises(ValueError, match="need weights"):
            PLAIN[name](*wrong)


# Numbers add up, then divide once


@given(arrays(np.int32, (3, 4), elements=st.integers(0, 2)), st.sampled_from(sorted(FUNCTIONS)))
def test_any_split_adds_up_to_the_whole(part_of, name):
    predictions, targets, weights = example(name)
    parts = [
        FUNCTIONS[name](predictions, targets, weights * (part_of == part)) for part in range(3)
    ]
    whole = FUNCTIONS[name](predictions, targets, weights)
    np.testing.assert_allclose(pooled(*parts), [float(x) for x in whole], rtol=1e-5)


@each_function
def test_padding_changes_nothing(name):
    predictions, targets, weights = example(name)
    times = [(0, 0), (0, 4), (0, 0)]
    wider = [np.pad(x, times[: x.ndim]) for x in (predictions, targets, weights)]
    np.testing.assert_allclose(
        FUNCTIONS[name](*wider), FUNCTIONS[name](predictions, targets, weights), rtol=1e-6
    )


def nats(*each):
    """Terms of `cross_entropy` with the given values, and padding up to 40 terms."""
    logits, weights = np.full((40, 2), np.nan, np.float32), np.zeros(40, np.float32)
    for i, value in enumerate(each):
        logits[i], weights[i] = [0, math.log(math.expm1(value))], 1  # label 0
    return FUNCTIONS["cross_entropy"](logits, np.zeros(40, np.int32), weights)


def pooled(*parts):
    return sum(float(total) for total, _ in parts), sum(float(weight) for _, weight in parts)


EIGHT = [1.0, 1.1, 1.2, 1.3, 1.4, 1.2, 1.3, 1.4]  # the first five have mean 1.2, the rest 1.3


@pytest.mark.parametrize("cut", [5, 4, 8])
def test_L01_mean_is_over_examples_not_over_batches(cut):
    assert mean(*pooled(nats(*EIGHT[:cut]), nats(*EIGHT[cut:]))) == pytest.approx(1.2375)


def test_L02_F5_perplexity_of_a_corpus():
    parts = nats(*[1.0] * 30), nats(*[3.0] * 10)
    assert perplexity(*pooled(*parts)) == pytest.approx(4.481689, abs=5e-6)
    again = nats(*[1.0] * 17), nats(*[1.0] * 13, *[3.0] * 3), nats(*[3.0] * 7)
    assert perplexity(*pooled(*again)) == pytest.approx(4.481689, abs=5e-6)


def test_L02_bits_are_nats_over_ln_2():
    logits, labels, weights = example("bits")
    in_bits, in_nats = bits(logits, labels, weights), cross_entropy(logits, labels, weights)
    assert mean(*in_bits) == pytest.approx(mean(*in_nats) / math.log(2))


def test_L02_overflow_is_inf():
    assert perplexity(1e6, 1.0) == math.inf
    assert perplexity(jnp.float32(jnp.inf), jnp.float32(1)) == math.inf
    assert math.isnan(perplexity(math.nan, 1.0))


@pytest.mark.parametrize("classes", [2, 7, 103])
def test_L03_uniform_model_has_perplexity_v(classes):
    # 12 tokens in 2 rows: the first of each row is predicted by nothing, so 10 are scored.
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6) % classes
    logits = np.zeros((2, 5, classes), np.float32)
    total, weight = cross_entropy(logits, tokens[:, 1:], np.ones((2, 5), np.float32))
    assert float(weight) == 10
    assert perplexity(total, weight) == pytest.approx(classes, rel=1e-6)


@each_function
@pytest.mark.parametrize("shape", [(0, 4), (3, 4)])
def test_L04_nothing_to_score_gives_zero_and_no_gradient(name, shape):
    predictions, targets, weights = example(name, shape)
    weights = np.zeros_like(weights)
    predictions = np.full_like(predictions, np.nan)
    assert [float(x) for x in FUNCTIONS[name](predictions, targets, weights)] == [0, 0]
    slope, _ = SLOPES[name](predictions, targets, weights)
    assert slope.shape == predictions.shape and not np.any(slope)


def test_L04_a_whole_set_without_targets_is_an_error():
    with pytest.raises(ValueError, match="nothing was scored: the weights add up to 0.0"):
        mean(0.0, 0.0)
    with pytest.raises(ValueError, match="nothing was scored"):
        perplexity(jnp.float32(0), jnp.float32(0))


def test_L04_an_empty_batch_is_no_part_of_the_average():
    nothing = cross_entropy(
        np.full((2, 2), np.nan, np.float32), np.array([-1, -1]), np.zeros((2,), np.float32)
    )
    assert mean(*pooled(nats(1.0), nothing, nats(3.0))) == pytest.approx(2.0)


def test_L05_accuracy_under_the_mask():
    logits = np.eye(3, dtype=np.float32)[[1, 0, 0, 0]]
    labels = np.array([1, 2, 0, 0], np.int32)  # the pads would count as right
    assert mean(*accuracy(logits, labels, np.array([1, 1, 0, 0], np.float32))) == 0.5


@each_function
def test_L05_every_metric_sees_the_mask(name):
    predictions, targets, weights = example(name, (4,))
    weights = np.array([1, 1, 0, 0], np.float32)
    np.testing.assert_allclose(
        FUNCTIONS[name](predictions, targets, weights),
        FUNCTIONS[name](predictions[:2], targets[:2], weights[:2]),
        rtol=1e-6,
    )


def test_L06_average_of_three_batches():
    assert mean(*pooled(nats(1.0), nats(2.0), nats(3.0))) == pytest.approx(2.0)


# Low precision


@each_function
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_C06_sums_are_float32(name, dtype):
    predictions, targets, weights = example(name, (5000,), 2)
    low = jnp.asarray(predictions, dtype)
    results = FUNCTIONS[name](low, targets, jnp.ones((5000,), dtype))
    assert all(x.dtype == jnp.float32 for x in results)
    assert float(results[1]) == 5000
    wide = FUNCTIONS[name](low.astype(jnp.float32), targets, np.ones((5000,), np.float32))
    assert float(results[0]) == pytest.approx(float(wide[0]), rel=1e-6)


def test_C06_count_of_300_batches_of_one_token():
    one = jnp.ones((1,), jnp.bfloat16)

    def add(sums, logits):
        part = cross_entropy(logits, jnp.array([0]), one)
        return jax.tree.map(jnp.add, sums, part), None

    zero = (jnp.zeros(()), jnp.zeros(()))
    sums, _ = jax.lax.scan(add, zero, jnp.zeros((300, 1, 2), jnp.bfloat16))
    assert float(sums[1]) == 300
    assert mean(*sums) == pytest.approx(math.log(2), rel=1e-5)


@each_function
def test_C06_float64_stays_float64(name, x64):
    predictions, targets, weights = example(name)
    results = FUNCTIONS[name](jnp.asarray(predictions, "f8"), targets, weights)
    assert all(x.dtype == jnp.float64 for x in results)


@each_function
def test_jit_and_vmap(name):
    args = example(name, (3, 4))
    rows = jax.jit(jax.vmap(PLAIN[name]))(*args)
    np.testing.assert_allclose([x.sum() for x in rows], FUNCTIONS[name](*args), rtol=1e-5)


def test_which_way_metrics_improve():
    assert [name for name, metric in METRICS.items() if metric.higher_is_better] == ["accuracy"]
