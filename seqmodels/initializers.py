"""Initial weights and gate biases, each with its source.

A weight initialiser is any hashable `(key, shape, dtype) -> array`; those of
`jax.nn.initializers` serve too. A gate-bias initialiser is `(key, features, dtype) ->
(keep, write)`: what to add to the bias of the gate that keeps the memory (LSTM's f, GRU's z) and
of the gate that writes to it (LSTM's i). Those with settings are frozen dataclasses, so that two
cells with equal settings are equal and share a compiled program; the others are functions of this
module, not JAX's closures, so that cells and layers can be pickled.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.types import Key

Initializer = Callable[[Key, Sequence[int], Any], jax.Array]
GateBias = Callable[[Key, int, Any], tuple[jax.Array, jax.Array]]

zeros: Initializer = jax.nn.initializers.zeros


def orthogonal(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Q of a random matrix: every singular value is 1, so that a linear recurrence neither grows
    nor fades (Saxe, McClelland & Ganguli 2014, arXiv:1312.6120)."""
    return jax.nn.initializers.orthogonal()(key, shape, dtype)


def glorot_uniform(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    return jax.nn.initializers.glorot_uniform()(key, shape, dtype)


def lecun_normal(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """N(0, 1 / fan_in), cut off at two deviations: Flax's default (LeCun et al. 1998)."""
    return jax.nn.initializers.lecun_normal()(key, shape, dtype)


def uniform_by_width(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """U(-1/sqrt(H), 1/sqrt(H)), H = shape[-1]: weights and biases of PyTorch's RNN, LSTM, GRU.

    `shape` is that of one gate's block, [E, H], [H, H] or [H]; the bound does not look at E.
    """
    bound = shape[-1] ** -0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def identity(key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """The identity matrix [H, H], for ReLU networks (Le, Jaitly & Hinton 2015, arXiv:1504.00941).

    Raises ValueError for a shape that is not square.
    """
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"identity needs a square matrix, got shape {tuple(shape)}")
    return jnp.eye(shape[0], dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Normal:
    """N(0, stddev^2)."""

    stddev: float

    def __call__(self, key: Key, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return self.stddev * jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Constant:
    """The keep gate's bias starts at `value`, the write gate's at 0.

    1 for the LSTM's forget gate lets memory last from the first update on (Gers, Schmidhuber &
    Cummins 2000; Jozefowicz, Zaremba & Sutskever 2015). The same value for the GRU's z, which
    keeps in our convention h' = (1-z)n + zh, treats both cells alike.
    """

    value: float

    def __call__(self, key: Key, features: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.full((features,), self.value, dtype), jnp.zeros((features,), dtype)


@dataclasses.dataclass(frozen=True)
class Chrono:
    """keep = log u, u ~ U(1, t_max - 1), and write = -keep: time scales spread over 1..t_max.

    A gate held at sigmoid(log u) forgets with time constant 1 + u, so the units together cover
    dependencies up to `t_max` steps, which must be known beforehand (Tallec & Ollivier 2018,
    arXiv:1804.11188, eq. 16). The GRU has no write gate; its z takes `keep` alone.

    Raises ValueError unless t_max > 2.
    """

    t_max: int

    def __post_init__(self):
        if not self.t_max > 2:
            raise ValueError(f"Chrono: t_max={self.t_max} must be above 2 steps")

    def __call__(self, key: Key, features: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
        keep = jnp.log(jax.random.uniform(key, (features,), dtype, 1.0, self.t_max - 1.0))
        return keep, -keep


def blocks(init: Initializer, key: Key, shape: Sequence[int], count: int, dtype: Any) -> jax.Array:
    """`count` matrices of `shape`, drawn one by one, side by side: [E, H] -> [E, count * H].

    Each gate gets a matrix of its own, so that "orthogonal" holds for each gate's block and the
    fan of "Glorot" is that of one gate.
    """
    # One by one, not by vmap: a batched QR on a CPU waits inside the thread pool that it needs, and
    # two at once, on two devices, wait for ever (seen with jaxlib 0.10.2).
    keys = [key] if count == 1 else jax.random.split(key, count)
    return jnp.concatenate([init(k, shape, dtype) for k in keys], axis=-1)
