"""Optimizers: the order of the chain, clipping, decay by name, schedules, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seqmodels import optim

LSTM_LIKE = {
    "layer_0": {
        "input": {"kernel": np.full((2, 8), 0.5, np.float32), "bias": np.ones(8, np.float32)},
        "recurrent": {"kernel": np.full((2, 8), 2.0, np.float32), "bias": np.ones(2, np.float32)},
    },
    "embed": {"embedding": np.full((5, 2), -1.0, np.float32)},
    "nu": np.ones(3, np.float32),
}


def update(transform, gradient, params=None, state=None):
    params = jax.tree.map(jnp.zeros_like, gradient) if params is None else params
    state = transform.init(params) if state is None else state
    return transform.update(gradient, state, params)[0]


def run(transform, params, gradients):
    """Parameters after the updates."""
    state = transform.init(params)
    step = jax.jit(transform.update)
    for gradient in gradients:
        change, state = step(gradient, state, params)
        params = optax.apply_updates(params, change)
    return params


# Norm and clipping


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 1e30, 3e37])
def test_D02_norm_is_right_at_any_size(size):
    tree = {"a": np.float32([3 * size, 0]), "b": {"c": np.float32([[4 * size]])}}
    assert float(optim.global_norm(tree)) == pytest.approx(5 * size, rel=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e12, 1e30, 3e38])
@pytest.mark.parametrize("limit", [1.0, 1e-3])
def test_D02_huge_finite_gradient_is_clipped_to_the_limit(size, limit):
    gradient = {"a": np.full((3,), size, np.float32), "b": np.full((2, 2), -size, np.float32)}
    clipped = update(optim.clip_by_global_norm(limit), gradient)
    assert float(optim.global_norm(clipped)) == pytest.approx(limit, rel=1e-6)
    np.testing.assert_allclose(clipped["a"], limit / np.sqrt(7), rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], -limit / np.sqrt(7), rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 0.5])
def test_D02_gradient_below_the_limit_keeps_its_bits(size):
    gradient = {"a": np.full((2,), size, np.float32)}
    np.testing.assert_array_equal(
        update(optim.clip_by_global_norm(1.0), gradient)["a"], gradient["a"]
    )


def test_D02_zero_gradient_stays_zero():
    gradient = {"a": np.zeros((2, 2), np.float32), "none": np.zeros((0, 3), np.float32)}
    assert float(optim.global_norm(gradient)) == 0
    assert not np.any(update(optim.clip_by_global_norm(1.0), gradient)["a"])
    assert float(optim.global_norm({})) == 0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_D02_a_non_finite_gradient_stays_as_it_is(bad):
    gradient = {"a": np.float32([bad, 1]), "b": np.float32([2])}
    assert not np.isfinite(optim.global_norm(gradient))
    clipped = update(optim.clip_by_global_norm(1.0), gradient)
    jax.tree.map(np.testing.assert_array_equal, clipped, gradient)


def test_D02_low_precision_keeps_its_dtype():
    gradient = {"a": jnp.full((4,), 1e30, jnp.bfloat16), "b": jnp.zeros((2,), jnp.float32)}
    assert optim.global_norm(gradient).dtype == jnp.float32
    clipped = update(optim.clip_by_global_norm(1.0), gradient)
    assert clipped["a"].dtype == jnp.bfloat16 and clipped["b"].dtype == jnp.float32
    np.testing.assert_allclose(clipped["a"].astype(np.float32), 0.5)


def test_D02_norm_in_float64(x64):
    assert float(optim.global_norm({"a": np.array([3e200, 4e200])})) == pytest.approx(5e200)


@given(
    arrays(np.float32, (2, 3), elements=st.floats(-100, 100, width=32)),
    st.sampled_from([1.0, 90.0]),
)
def test_clipping_agrees_with_optax_where_nothing_overflows(numbers, limit):
    gradient = {"a": jnp.asarray(numbers[0]), "b": jnp.asarray(numbers[1])}
    ours = update(optim.clip_by_global_norm(limit), gradient)
    theirs = update(optax.clip_by_global_norm(limit), gradient)
    for name in gradient:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-20)


def test_clip_acts_on_the_accumulated_gradient():
    sgd = optim.make("sgd", 1.0, clip=1.0)
    mean = {"a": np.float32([1, 1])}  # of the micro-gradients [2, 0] and [0, 2]
    np.testing.assert_allclose(update(sgd, mean)["a"], [-0.70710678, -0.70710678], rtol=1e-6)


# Weight decay


def shrunk(params, **settings):
    """Paths of the leaves that a zero gradient changes."""
    adamw = optim.make("adamw", 0.5, weight_decay=0.1, **settings)
    after = run(adamw, params, [jax.tree.map(np.zeros_like, params)])
    paths = set()
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(after), strict=True
    ):
        if not np.array_equal(old, new):
            np.testing.assert_allclose(new, old * (1 - 0.5 * 0.1), rtol=1e-6)
            paths.add(jax.tree_util.keystr(path, simple=True, separator="/"))
    return paths


DECAYED = {"layer_0/input/kernel", "layer_0/recurrent/kernel", "embed/embedding"}


def test_D09_only_kernels_and_embeddings_shrink():
    assert shrunk(LSTM_LIKE) == DECAYED
    assert shrunk(LSTM_LIKE, clip=1.0) == DECAYED


def test_D09_stacked_biases_of_rank_2_do_not_shrink():
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), LSTM_LIKE)
    assert shrunk(stacked) == DECAYED


def test_D09_a_bias_inside_a_module_named_kernel_does_not_shrink():
    assert shrunk({"kernel": {"bias": np.ones((2, 2), np.float32)}}) == set()


def test_decay_follows_the_learning_rate_and_no_gradient():
    adamw = optim.make("adamw", 0.5, weight_decay=0.1, schedule="linear", steps=2)
    params, zero = {"kernel": np.float32([1.0])}, {"kernel": np.float32([0.0])}
    after = run(adamw, params, [zero, zero])
    np.testing.assert_allclose(after["kernel"], 0.95 * 0.975, rtol=1e-6)
    huge = update(adamw, {"kernel": np.float32([1e3])}, params)
    np.testing.assert_allclose(huge["kernel"], -0.5 * (1 + 0.1), rtol=1e-5)  # after adam's sign


# Preconditioners, against a direct reading of their definitions


# The second is small enough to show where epsilon stands.
GRADIENTS = [np.float32([0.5, -2e-6]), np.float32([1.0, 1e-6]), np.float32([-0.25, 3e-6])]


def by_hand(name, rate, *, b1=0.9, b2=None, momentum=0.0, decay=0.0):
    b2 = (0.9 if name == "rmsprop" else 0.999) if b2 is None else b2
    x, m, v = np.ones(2), np.zeros(2), np.zeros(2)
    for n, g in enumerate(np.asarray(GRADIENTS, np.float64), start=1):
        v = b2 * v + (1 - b2) * g**2
        if name == "sgd":
            m = momentum * m + g
            step = m
        elif name == "rmsprop":
            step = g / (np.sqrt(v) + 1e-8)
        else:
            m = b1 * m + (1 - b1) * g
            step = m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + 1e-8)
        x = x - rate * (step + decay * x)
    return x


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adam", {}),
        ("adam", {"b1": 0.5, "b2": 0.9}),
        ("adamw", {"weight_decay": 0.1}),
        ("rmsprop", {}),
        ("rmsprop", {"b2": 0.5}),
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
    ],
)
def test_three_updates_by_hand(name, settings):
    params = {"kernel": np.ones(2, np.float32)}
    after = run(optim.make(name, 0.1, **settings), params, [{"kernel": g} for g in GRADIENTS])
    keywords = {("decay" if key == "weight_decay" else key): v for key, v in settings.items()}
    np.testing.assert_allclose(after["kernel"], by_hand(name, 0.1, **keywords), rtol=1e-5)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_clip_comes_first(name):
    """Scaling all gradients by 1000 is undone by the clip, so it changes nothing."""
    params = {"kernel": np.ones(2, np.float32)}
    optimizer = optim.make(name, 0.1, clip=0.1)
    small = run(optimizer, params, [{"kernel": g} for g in GRADIENTS])
    large = run(optimizer, params, [{"kernel": 1000 * g} for g in GRADIENTS])
    np.testing.assert_allclose(small["kernel"], large["kernel"], rtol=1e-5)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_zero_learning_rate_changes_nothing(name):
    params = {"kernel": np.ones(2, np.float32)}
    after = run(optim.make(name, 0.0), params, [{"kernel": g} for g in GRADIENTS])
    np.testing.assert_array_equal(after["kernel"], params["kernel"])


# Schedules


def rates(count, *args, **settings):
    schedule = optim.learning_rates(*args, **settings)
    return [float(schedule(jnp.int32(n))) for n in range(count)]


def test_schedules_by_hand():
    assert rates(3, 0.5) == [0.5, 0.5, 0.5]
    np.testing.assert_allclose(
        rates(6, 1.0, schedule="linear", steps=4), [1, 0.75, 0.5, 0.25, 0, 0], atol=1e-7
    )
    np.testing.assert_allclose(
        rates(6, 2.0, schedule="cosine", steps=4),
        [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0],
        atol=1e-6,
    )


@pytest.mark.parametrize("schedule", optim.SCHEDULES)
def test_warmup_rises_to_the_peak_and_hands_over(schedule):
    warm = rates(8, 0.9, schedule=schedule, steps=7, warmup=2)
    np.testing.assert_allclose(warm[:3], [0.3, 0.6, 0.9], rtol=1e-6)
    np.testing.assert_allclose(warm[2:], rates(6, 0.9, schedule=schedule, steps=5), atol=1e-6)


def test_D07_schedule_counts_updates():
    transform = optim.make("sgd", 1.0, schedule="linear", steps=4, warmup=1)
    params = {"a": np.zeros(1, np.float32)}
    state, seen = transform.init(params), []
    for _ in range(5):
        change, state = transform.update({"a": np.ones(1, np.float32)}, state, params)
        seen.append(-float(change["a"][0]))
    np.testing.assert_allclose(seen, [1 / 2, 1, 2 / 3, 1 / 3, 0], atol=1e-6)


# What is refused, each in one line

refused = [
    (
        ("adm", 0.1),
        {},
        "unknown optimizer 'adm'; did you mean 'adam'\\? \\(allowed: adam, adamw, .*",
    ),
    (("zzz", 0.1), {}, "unknown optimizer 'zzz' \\(allowed: .*"),
    (("sgd", 0.1), {"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'.*"),
    (("sgd", -0.1), {}, "learning_rate must be finite and at least 0, got -0.1"),
    (("sgd", float("nan")), {}, "learning_rate must be finite and at least 0, got nan"),
    (("sgd", float("inf")), {}, "learning_rate must be finite and at least 0, got inf"),
    (("adam", 0.1), {"weight_decay": 0.1}, "weight_decay=0.1 has no effect on adam, only on adamw"),
    (("adam", 0.1), {"momentum": 0.9}, "momentum=0.9 has no effect on adam, only on sgd"),
    (("sgd", 0.1), {"b1": 0.9}, "b1=0.9 has no effect on sgd, only on adam, adamw"),
    (("rmsprop", 0.1), {"b1": 0.0}, "b1=0.0 has no effect on rmsprop, only on adam, adamw"),
    (("sgd", 0.1), {"b2": 0.9}, "b2=0.9 has no effect on sgd, only on adam, adamw, rmsprop"),
    (("adamw", 0.1), {"weight_decay": -1.0}, "weight_decay must be .* at least 0, got -1.0"),
    (("sgd", 0.1), {"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
    (("adam", 0.1), {"b1": -0.1}, "b1 must be at least 0 and below 1, got -0.1"),
    (("adam", 0.1), {"b2": 1.0}, "b2 must be at least 0 and below 1, got 1.0"),
    (("adam", 0.1), {"clip": 0.0}, "clip must be .* above 0, .* got 0.0"),
    (("adam", 0.1), {"clip": float("inf")}, "clip must be finite .* got inf"),
    (("sgd", 0.1), {"warmup": -1}, "warmup must be at least 0, got -1"),
    (("sgd", 0.1), {"warmup": 5, "steps": 5}, "steps must be above warmup \\(5\\), got 5"),
    (("sgd", 0.1), {"schedule": "cosine"}, "steps must be given for the schedule cosine, got None"),
    (("sgd", 0.1), {"schedule": "linear", "steps": 0}, "steps must be above .* got 0"),
]


@pytest.mark.parametrize(("args", "settings", "message"), refused, ids=[r[2] for r in refused])
def test_impossible_or_idle_settings_are_refused(args, settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        optim.make(*args, **settings)


SETTINGS = {
    "schedule": ("adam", "linear"),
    "steps": ("adam", 9),
    "warmup": ("adam", 2),
    "clip": ("adam", 0.01),
    "weight_decay": ("adamw", 0.1),
    "momentum": ("sgd", 0.9),
    "b1": ("adam", 0.5),
    "b2": ("rmsprop", 0.5),
}


@pytest.mark.parametrize("field", SETTINGS)
def test_K06_every_setting_has_an_effect(field):
    name, value = SETTINGS[field]
    common = {"schedule": "cosine", "steps": 5}
    params, gradients = {"kernel": np.ones(2, np.float32)}, [{"kernel": g} for g in GRADIENTS]
    before = run(optim.make(name, 0.1, **common), params, gradients)
    after = run(optim.make(name, 0.1, **(common | {field: value})), params, gradients)
    assert not np.allclose(before["kernel"], after["kernel"], rtol=1e-5)
