"""Optimizers: optax transformations in one fixed order, and a gradient norm that cannot overflow.

    clip by global norm -> adam, rmsprop or sgd -> decoupled weight decay -> learning rate

The order matters: clipping sees the raw gradient, and weight decay is scaled by the learning
rate but by no gradient statistics. A gradient that is not finite passes through as it is, for
the training step to skip.
"""

import difflib
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from seqmodels.types import Array

OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")
SCHEDULES = ("constant", "cosine", "linear")
DECAYED = ("kernel", "embedding")  # names of the leaves that weight decay shrinks


def make(
    name: str,
    learning_rate: float,
    *,
    schedule: str = "constant",
    steps: int | None = None,
    warmup: int = 0,
    clip: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    b1: float | None = None,
    b2: float | None = None,
) -> optax.GradientTransformation:
    """The optimizer `name`. Its `update` needs the parameters as third argument for adamw.

    name           adam (Kingma & Ba 2015), adamw (Loshchilov & Hutter 2019), rmsprop (Hinton
                   2012), sgd; epsilon is 1e-8, added outside the square root
    learning_rate  highest rate; schedule, steps, warmup: see `learning_rates`
    clip           largest global norm of the gradient; None: no clipping
    weight_decay   adamw only: each update subtracts rate * weight_decay * leaf, for leaves
                   named kernel or embedding and no others
    momentum       sgd only: factor of the running sum of gradients
    b1             adam, adamw only: decay of the first moment; None: 0.9
    b2             adam, adamw, rmsprop only: decay of the second moment; None: 0.999, and 0.9
                   for rmsprop

    Raises ValueError, one line, for an unknown name, a value out of range, or a setting that the
    chosen optimizer has no use for.
    """
    _require_known("optimizer", name, OPTIMIZERS)
    rates = learning_rates(learning_rate, schedule=schedule, steps=steps, warmup=warmup)
    for field, value, given, users in (
        ("weight_decay", weight_decay, weight_decay != 0, ("adamw",)),
        ("momentum", momentum, momentum != 0, ("sgd",)),
        ("b1", b1, b1 is not None, ("adam", "adamw")),
        ("b2", b2, b2 is not None, ("adam", "adamw", "rmsprop")),
    ):
        if given and name not in users:
            raise ValueError(f"{field}={value} has no effect on {name}, only on {', '.join(users)}")
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be finite and above 0, or None for no clipping, got {clip}")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay must be finite and at least 0, got {weight_decay}")
    for field, value in (("momentum", momentum), ("b1", b1), ("b2", b2)):
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{field} must be at least 0 and below 1, got {value}")

    parts = [] if clip is None else [clip_by_global_norm(clip)]
    if name in ("adam", "adamw"):
        b1 = 0.9 if b1 is None else b1
        parts.append(optax.scale_by_adam(b1=b1, b2=0.999 if b2 is None else b2, eps=1e-8))
    elif name == "rmsprop":
        decay = 0.9 if b2 is None else b2
        parts.append(optax.scale_by_rms(decay=decay, eps=1e-8, eps_in_sqrt=False))
    elif momentum:
        parts.append(optax.trace(decay=momentum))
    if weight_decay:
        parts.append(optax.add_decayed_weights(weight_decay, mask=decayed))
    chain = optax.chain(*parts, optax.scale_by_learning_rate(rates))
    return optax.GradientTransformation(chain.init, _lenient(chain.update))


def learning_rates(
    learning_rate: float, *, schedule: str = "constant", steps: int | None = None, warmup: int = 0
) -> optax.Schedule:
    """Learning rate of update n, counted from 0.

    warmup    the first `warmup` updates use learning_rate * (n + 1) / (warmup + 1), so that no
              update is wasted on a rate of 0
    schedule  what follows: constant; cosine, learning_rate * (1 + cos(pi p)) / 2; or linear,
              learning_rate * (1 - p), with p = (n - warmup) / (steps - warmup)
    steps     updates of the whole run, warm-up included. cosine and linear need it and end at 0
              there; for constant it only bounds the warm-up.

    Raises ValueError, one line, for an unknown schedule or a value out of range.
    """
    _require_known("schedule", schedule, SCHEDULES)
    if not 0 <= learning_rate < math.inf:
        raise ValueError(f"learning_rate must be finite and at least 0, got {learning_rate}")
    if warmup < 0:
        raise ValueError(f"warmup must be at least 0, got {warmup}")
    if steps is not None and steps <= warmup:
        raise ValueError(f"steps must be above warmup ({warmup}), got {steps}")
    if schedule != "constant" and steps is None:
        raise ValueError(f"steps must be given for the schedule {schedule}, got None")

    if steps is None or schedule == "constant":
        rates = optax.constant_schedule(learning_rate)
    elif schedule == "cosine":
        rates = optax.cosine_decay_schedule(learning_rate, steps - warmup)
    else:
        rates = optax.linear_schedule(learning_rate, 0.0, steps - warmup)
    if warmup > 0:
        rising = optax.linear_schedule(learning_rate / (warmup + 1), learning_rate, warmup)
        rates = optax.join_schedules([rising, rates], [warmup])
    return _lenient(rates)


def applied(opt_state: Any) -> Any:
    """How many updates an optimizer of `make` applied to reach this state, int32: what its rates
    count."""
    return opt_state[-1].count  # of scale_by_learning_rate, the last of the chain


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale the whole gradient down to norm `limit` where its norm is above it.

    As `optax.clip_by_global_norm` (Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063), whose norm
    overflows for float32 gradients of about 1e19, which then become 0. A gradient that is not
    finite is left as it is: no scale repairs it.
    """

    def init(params):
        del params
        return optax.EmptyState()

    def update(updates, state, params=None):
        del params
        unit, length = _scaled_norm(updates)
        # Not unit * length > limit: that product may overflow where both factors are fine.
        above = jnp.isfinite(length) & (length > limit / unit)

        def scale(leaf):
            wide = leaf.astype(length.dtype)
            return jnp.where(above, wide / unit * (limit / length), wide).astype(leaf.dtype)

        return jax.tree.map(scale, updates), state

    return optax.GradientTransformation(init, update)


def global_norm(tree: Any) -> Float[Array, ""]:
    """Square root of the sum of the squares of all numbers in `tree`, in float32 at least.

    Right wherever the norm itself is a finite float: no square overflows or vanishes. 0 for an
    empty tree; not finite if any number is not.
    """
    unit, length = _scaled_norm(tree)
    return unit * length


def decayed(params: Any) -> Any:
    """Tree of bool: True for the leaves that weight decay shrinks, those named in `DECAYED`.

    Chosen by name. The rank would not do: layers stacked by scan or vmap have biases of rank 2.
    """

    def named(path, _):
        return jax.tree_util.keystr(path[-1:], simple=True) in DECAYED

    return jax.tree_util.tree_map_with_path(named, params)


def _scaled_norm(tree: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(unit, norm of tree / unit), with a unit near the largest magnitude."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    dtype = functools.reduce(
        np.promote_types, (leaf.dtype for leaf in leaves), np.dtype(np.float32)
    )
    leaves = [leaf.astype(dtype) for leaf in leaves]
    largest = jnp.zeros((), dtype)
    for leaf in leaves:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(leaf), initial=0))
    # Away from both ends of the range: XLA may divide by multiplying with 1 / unit, which would
    # be subnormal, and so 0, for the largest numbers.
    bound = float(jnp.finfo(dtype).max) ** 0.75
    unit = jnp.clip(largest, 1 / bound, bound)
    squares = jnp.zeros((), dtype)
    for leaf in leaves:
        squares += jnp.sum(jnp.square(leaf / unit))
    return unit, jnp.sqrt(squares)


def _lenient(function):
    """`function` under standard dtype promotion: optax mixes counts with floats, strict or not."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return wrapped


def _require_known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {kind} {name!r}{hint} (allowed: {', '.join(known)})")
