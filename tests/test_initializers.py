"""Initial weights and gate biases: each has the property that its paper names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seqmodels.initializers import (
    Chrono,
    Constant,
    Normal,
    blocks,
    glorot_uniform,
    identity,
    lecun_normal,
    orthogonal,
    uniform_by_width,
    zeros,
)

KEY = jax.random.key(0, impl="unsafe_rbg")  # quick to compile


def test_orthogonal_blocks_are_rotations_each():
    kernel = np.asarray(blocks(orthogonal, KEY, (8, 8), 3, jnp.float32))
    assert kernel.shape == (8, 24)
    parts = np.split(kernel, 3, axis=1)
    for part in parts:
        np.testing.assert_allclose(part.T @ part, np.eye(8), atol=1e-5)
    assert np.abs(parts[0] - parts[1]).max() > 0.1, "each gate draws its own"


def test_glorot_takes_the_fan_of_one_gate():
    kernel = np.asarray(blocks(glorot_uniform, KEY, (100, 50), 4, jnp.float32))
    bound = np.sqrt(6 / 150)
    assert np.abs(kernel).max() <= bound and np.abs(kernel).max() > 0.98 * bound


def test_uniform_by_width_is_pytorchs():
    for shape in ((100, 64), (64,)):
        sample = np.asarray(uniform_by_width(KEY, shape))
        assert np.abs(sample).max() <= 1 / 8 and np.abs(sample).max() > 0.9 / 8
        assert abs(sample.mean()) < 0.05


def test_identity_is_square_or_refused():
    np.testing.assert_array_equal(identity(KEY, (3, 3)), np.eye(3))
    for shape in ((3, 4), (3,), (3, 3, 3)):
        with pytest.raises(ValueError, match="identity needs a square matrix"):
            identity(KEY, shape)


def test_normal_has_its_spread():
    sample = np.asarray(Normal(0.001)(KEY, (100, 100)))
    assert abs(sample.std() / 0.001 - 1) < 0.05 and abs(sample.mean()) < 1e-4


def test_constant_keeps_and_does_not_write():
    keep, write = Constant(1.0)(KEY, 5, jnp.float32)
    np.testing.assert_array_equal(keep, np.ones(5))
    np.testing.assert_array_equal(write, np.zeros(5))


def test_chrono_spreads_time_scales():
    """u = exp(keep) is uniform on 1 .. t_max - 1: half of the units remember beyond the middle."""
    keep, write = (np.asarray(a) for a in Chrono(1000)(KEY, 4000, jnp.float32))
    np.testing.assert_array_equal(write, -keep)
    u = np.exp(keep)
    assert u.min() >= 1 and u.max() <= 999 * 1.0001
    np.testing.assert_allclose(np.quantile(u, [0.25, 0.5, 0.75]), [250, 500, 750], rtol=0.1)


@pytest.mark.parametrize("t_max", [2, 1, 0, -5])
def test_chrono_needs_a_span(t_max):
    with pytest.raises(ValueError, match=f"t_max={t_max} must be above 2"):
        Chrono(t_max)


def test_settings_make_equal_initializers_equal():
    for make in (Normal, Constant, Chrono):
        assert make(3) == make(3) != make(4) and hash(make(3)) == hash(make(3))


INITS = [orthogonal, glorot_uniform, lecun_normal, uniform_by_width, identity, zeros]


@pytest.mark.parametrize("init", INITS)
def test_dtypes_and_draws(init):
    sample = init(KEY, (4, 4), jnp.float32)
    assert sample.dtype == jnp.float32 and sample.shape == (4, 4)
    np.testing.assert_array_equal(sample, init(KEY, (4, 4), jnp.float32))
