"""Gradients of products over all steps: the same numbers, with the factors the other way round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import jaxpr_as_fun, primitives

from seqmodels.cells.base import affine
from seqmodels.recurrence.pullback import pull_back, turn_products

SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def products(jaxpr):
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is primitives.dot_general_p]


@given(rows=SIZES, inputs=st.integers(1, 4), outputs=st.integers(1, 4), bias=st.booleans())
def test_pull_back_is_vjp(rows, inputs, outputs, bias):
    def function(params, x):
        return {"y": affine(x, params["kernel"], params.get("bias")), "z": params["kernel"].T}

    params = {"kernel": numbers(inputs, outputs)} | ({"bias": numbers(outputs)} if bias else {})
    x = numbers(*rows, inputs, seed=1)
    cotangent = jax.tree.map(lambda a: numbers(*a.shape, seed=2), function(params, x))
    expected = jax.vjp(function, params, x)[1](cotangent)
    found = pull_back(function, cotangent, params, x)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected
    )


def test_the_cotangent_stands_on_the_right():
    x, dy = numbers(4, 2, 3), numbers(4, 2, 5)
    rows = ((0, 1), (0, 1)), ((), ())
    closed = jax.make_jaxpr(lambda x, dy: jax.lax.dot_general(dy, x, rows).T)(x, dy)
    turned = turn_products(closed).jaxpr
    (product,) = products(turned)
    assert [var.aval.shape for var in product.invars] == [x.shape, dy.shape]


@pytest.mark.parametrize("keep", ["product used twice", "axes of one factor", "batch"])
def test_what_is_no_turned_product_stays(keep):
    a, b = numbers(2, 3, 4), numbers(4, 5)

    def function(a, b):
        if keep == "batch":
            return jax.lax.dot_general(a, a, (((2,), (2,)), ((0,), (0,)))).transpose(2, 1, 0)
        y = jax.lax.dot_general(a, b, (((2,), (0,)), ((), ())))
        return (y.transpose(2, 0, 1), y) if keep == "product used twice" else y.transpose(1, 0, 2)

    closed = jax.make_jaxpr(function)(a, b)
    turned = turn_products(closed)
    assert len(turned.jaxpr.eqns) == len(closed.jaxpr.eqns)
    for one, other in zip(jaxpr_as_fun(turned)(a, b), jax.tree.leaves(function(a, b)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_product_over_one_column_is_exact(dtype):
    """It runs as one over two columns, one of them zero."""
    x, kernel, bias = numbers(2, 7, 1), numbers(1, 6, seed=1), numbers(6, seed=2)
    kind = jnp.float32 if dtype is None else dtype
    wide, row = (np.asarray(a.astype(kind), np.float32) for a in (x, kernel))
    np.testing.assert_array_equal(affine(x, kernel, bias, dtype), wide * row + np.asarray(bias))
