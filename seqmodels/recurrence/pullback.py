"""Gradients over all steps at once, with each product's large factor left as it lies.

For y = x W JAX forms dW as (dy^T x)^T: dy stands on the left, and a CPU turns it before it
multiplies. dy has G * H features, x only E, so x^T dy costs less: an LSTM's gradient for
[T, B] = [784, 32] rows and H = 128 takes 18 ms instead of 39 on one core.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var, jaxpr_as_fun, primitives


def pull_back(function: Callable[..., Any], cotangent: Any, *args: Any) -> tuple[Any, ...]:
    """`jax.vjp(function, *args)` applied to the cotangent of its result: one cotangent an arg."""

    def gradients(args, cotangent):
        return jax.vjp(function, *args)[1](cotangent)

    closed, shapes = jax.make_jaxpr(gradients, return_shape=True)(args, cotangent)
    out = jaxpr_as_fun(turn_products(closed))(*jax.tree.leaves((args, cotangent)))
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


def turn_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same function, with b a in place of every (a b)^T."""
    jaxpr = closed.jaxpr
    read = [*jaxpr.outvars, *(var for eqn in jaxpr.eqns for var in eqn.invars)]
    uses = Counter(var for var in read if isinstance(var, Var))
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if eqns and _turns(eqn, eqns[-1]) and uses[eqn.invars[0]] == 1:
            eqns[-1] = _turned(eqns[-1], eqn)
        else:
            eqns.append(eqn)
    return closed.replace(jaxpr=jaxpr.replace(eqns=eqns))


def _turns(eqn: JaxprEqn, product: Any) -> bool:
    """Whether `eqn` puts the axes of the product's right factor before those of the left one."""
    if product.primitive is not primitives.dot_general_p or eqn.invars != product.outvars:
        return False
    (left, _), (batch, _) = product.params["dimension_numbers"]
    shape_left, shape_out = (var.aval.shape for var in (product.invars[0], *product.outvars))
    axes, kept = range(len(shape_out)), len(shape_left) - len(left)  # of the left factor
    turned = (*axes[kept:], *axes[:kept])
    swaps = eqn.primitive is primitives.transpose_p and eqn.params["permutation"] == turned
    return swaps and not batch


def _turned(product: JaxprEqn, transpose: JaxprEqn) -> JaxprEqn:
    (left, right), batch = product.params["dimension_numbers"]
    params = product.params | {"dimension_numbers": ((right, left), batch)}
    if isinstance(params["precision"], tuple):  # one for each factor
        params["precision"] = params["precision"][::-1]
    sharding = params["out_sharding"]
    if sharding is not None:
        spec = [sharding.spec[axis] for axis in transpose.params["permutation"]]
        params["out_sharding"] = sharding.update(spec=spec)
    return product.replace(invars=product.invars[::-1], outvars=transpose.outvars, params=params)
