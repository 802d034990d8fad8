"""The protocol that every cell follows, and the matrix products that they share.

A cell is a frozen dataclass of static settings with pure methods on parameters and carry. One
step is split so that all that does not depend on time can leave the loop:

    z = project(params, x)              the input half; may run for all steps in one product
    u = recur(params, carry)            the recurrent half, affine in the carry; one product
    carry = update(params, carry, z, u) the rest
    y = output(carry)                   what the layer above sees

The carry may have another floating dtype than z and u: cast it to theirs before they meet.

A new cell is one file with these methods and one line in `cells.CELLS`. `cells.standard` has what
RNN, LSTM and GRU share: start there if a cell has one input and one recurrent kernel.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels.types import Array, Carry, Key, Noise, Params, cast_like


@dataclasses.dataclass(frozen=True)
class Cell:
    """Settings common to all cells.

    features  hidden width H
    dtype     of the operands of the matrix products of the forward pass; None takes the
              parameters'. Products accumulate, and gates, carry and cotangents are computed, in
              float32 at least.
    """

    features: int
    dtype: Any = None

    def __post_init__(self):
        name = type(self).__name__
        check_size(name, "features", self.features)
        if self.dtype is not None and not _is_float(self.dtype):
            raise ValueError(f"{name}: dtype={self.dtype!r} is not a floating dtype")

    @property
    def additive(self) -> bool:
        """Whether z and u enter `update` only as z + u: the backward pass then keeps the sum alone.

        Said by the class that defines `update`; read through `adds`.
        """
        return False

    @property
    def adds(self) -> bool:
        """`additive`, unless a subclass has an `update` of its own and did not say it anew."""
        return self._said_with_update("additive") and self.additive

    @property
    def overwritable(self) -> bool:
        """Whether the backward loop may put cotangents in the place of z and u.

        Only for a step of which `tests/test_compiled.py` shows that XLA then copies nothing: where
        it cannot order the reads before the write, it copies all steps at each of them. Said by
        the class that defines `update`; read through `overwrites`.
        """
        return False

    @property
    def overwrites(self) -> bool:
        """`overwritable`, unless a subclass has an `update` of its own and did not say it anew."""
        return self._said_with_update("overwritable") and self.overwritable

    def _said_with_update(self, name: str) -> bool:
        kinds = type(self).__mro__
        said, defined = (
            next(depth for depth, kind in enumerate(kinds) if attribute in vars(kind))
            for attribute in (name, "update")
        )
        return said <= defined

    @property
    def associative(self) -> bool:
        """Whether the next carry is linear in the last, so that steps may be taken all at once.

        Such a cell (`cells.linear`) has `linear`, `join` and `part` besides. Said by the class that
        defines `update`; read through `associates`.
        """
        return False

    @property
    def associates(self) -> bool:
        """`associative`, unless a subclass has an `update` of its own and did not say it anew, or
        there is noise, which the steps all at once do not take."""
        return self._said_with_update("associative") and self.associative and not self.stochastic

    @property
    def cudnn(self) -> bool:
        """Whether cuDNN's LSTM computes the same; such a cell has `cudnn_weights` besides."""
        return False

    @property
    def stochastic(self) -> bool:
        """Whether `noise` draws something, so that a training pass needs a key."""
        return type(self).noise is not Cell.noise

    @property
    def out_features(self) -> int:
        """Width of y."""
        return self.features

    def init(self, key: Key, in_features: int) -> Params:
        """Parameters of one cell for inputs of width E = `in_features`, float32."""
        raise NotImplementedError

    def shapes(self, in_features: int) -> Params:
        """The tree that `init` gives, as shapes: nothing is computed."""
        return _shapes(self, in_features, jnp.result_type(float))

    def check(self, params: Params, in_features: int) -> None:
        """ValueError, naming the leaf, unless `params` are parameters of this cell."""
        check_params(params, self.shapes(in_features))

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        """The carry before the first step: arrays [B, H], each a buffer of its own."""
        raise NotImplementedError

    def project(self, params: Params, x: Array) -> Any:
        """The input half of the pre-activations, x [B, E] -> z [B, G*H]."""
        raise NotImplementedError

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> Any:
        """The recurrent half of the pre-activations, affine in the carry -> u [B, G*H]."""
        raise NotImplementedError

    def update(
        self, params: Params, carry: Carry, z: Any, u: Any, noise: Noise | None = None
    ) -> Carry:
        """The next carry."""
        raise NotImplementedError

    def output(self, carry: Carry) -> jax.Array:
        """y [B, H], in the carry's dtype."""
        raise NotImplementedError

    def linear(self, params: Params, z: Any) -> tuple[jax.Array, jax.Array]:
        """(a, b) [B, H] with h' = a * h + b, real or complex numbers; only if `associative`."""
        raise NotImplementedError

    def join(self, carry: Carry) -> jax.Array:
        """h [B, H] of a carry, which has no complex numbers; only if `associative`."""
        raise NotImplementedError

    def part(self, h: jax.Array) -> Carry:
        """The inverse of `join`."""
        raise NotImplementedError

    def cudnn_weights(self, params: Params) -> jax.Array:
        """All weights in one vector, as cuDNN takes them; only if `cudnn`."""
        raise NotImplementedError

    def noise(self, key: Key, batch: int, steps: int) -> Noise | None:
        """Random masks for a whole sequence, drawn outside the loop. None: the cell has none."""
        return None

    def step(self, params: Params, carry: Carry, x: Array) -> tuple[Carry, jax.Array]:
        """One step, x [B, E] -> (carry, y [B, H]): for streaming, notebooks and oracles.

        Raises ValueError for parameters of another cell, and for a carry that is not floating or
        of another batch than x.
        """
        x = jnp.asarray(x)
        self.check(params, x.shape[-1])
        for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
            name = "carry" + jax.tree_util.keystr(path)
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(f"{name} has dtype {leaf.dtype}; a carry is floating")
            if leaf.shape[: x.ndim - 1] != x.shape[:-1]:
                raise ValueError(f"{name} has shape {leaf.shape}; x has shape {x.shape}")
        z, u = self.project(params, x), self.recur(params, carry)
        carry = cast_like(self.update(params, carry, z, u), carry)
        return carry, self.output(carry)


@functools.lru_cache
def _shapes(cell: Cell, in_features: int, default: Any) -> Params:
    """The `default` dtype is in the key of the cache: what a cell leaves open follows it."""
    return jax.eval_shape(lambda key: cell.init(key, in_features), jax.random.key(0))


def check_params(params: Params, wanted: Params) -> None:
    """ValueError, naming the leaf, unless `params` have the names and shapes of `wanted`.

    Without this, kernels of another cell may serve by broadcasting, and biases without a place may
    be left out.
    """
    given, expected = (
        {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (params, wanted))
    )
    for path in sorted(given.keys() | expected.keys()):
        if path not in given:
            raise ValueError(f"params{path} is missing; it has shape {expected[path].shape}")
        if path not in expected:
            raise ValueError(f"params{path} belongs to another cell or layer")
        shape, dtype, own = jnp.shape(given[path]), jnp.result_type(given[path]), expected[path]
        if shape != own.shape:
            raise ValueError(f"params{path} has shape {shape}; expected {own.shape}")
        if _is_float(own.dtype) and not _is_float(dtype):
            raise ValueError(f"params{path} has dtype {dtype}; expected a floating one")


def check_size(cell: str, name: str, size: Any) -> None:
    """ValueError unless `size` is a whole number of at least 1."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise ValueError(f"{cell}: {name}={size!r} must be a whole number")
    if size < 1:
        raise ValueError(f"{cell}: {name}={size} must be at least 1")


def check_flag(cell: str, name: str, value: Any) -> None:
    """ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{cell}: {name}={value!r} must be True or False")


def check_initializers(cell: Cell) -> None:
    """ValueError unless every field of a cell that is to draw weights can be called."""
    for field in dataclasses.fields(cell):
        given = getattr(cell, field.name)
        draws = field.name.endswith("_init") or field.name == "gate_bias"
        if draws and not callable(given):
            raise ValueError(
                f"{type(cell).__name__}: {field.name}={given!r} must be one of "
                "`seqmodels.initializers`, like Constant(1.0) for gate_bias"
            )


def check_bound(cell: str, name: str, value: float | None) -> None:
    """ValueError unless `value` is None or above 0."""
    if value is not None and (isinstance(value, bool) or not value > 0):
        raise ValueError(f"{cell}: {name}={value!r} must be above 0, or None")


def check_rate(name: str, rate: float) -> None:
    """ValueError unless `rate` is a probability below 1; a bool is no rate."""
    if isinstance(rate, bool) or not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} must be a number from 0 up to, not including, 1")


def _is_float(dtype: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False


def affine(x: Array, kernel: Array, bias: Array | None = None, dtype: Any = None) -> jax.Array:
    """x @ kernel + bias over the last axis: [..., E], [E, F], [F] -> [..., F].

    Operands are cast to `dtype` (None: the kernel's); the product accumulates, and the result
    comes, in float32 or wider.

    A kernel of n heads, [n, E/n, G, H/n] -> [..., G * H], is block-diagonal: each head of each of
    the G gates sees its own part of x.
    """
    dtype = jnp.dtype(kernel.dtype if dtype is None else dtype)
    wide = np.promote_types(dtype, np.float32)  # JAX's own refuses under strict promotion
    x, kernel = jnp.asarray(x).astype(dtype), kernel.astype(dtype)
    if kernel.ndim == 2 and len(kernel) == 1:
        # XLA makes a product over one column a multiplication inside whatever reads it, and a CPU
        # then does that many times slower. Over two, one of them zero, it stays a product.
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
        kernel = jnp.pad(kernel, [(0, 1), (0, 0)])
    if kernel.ndim == 4:
        heads = x.reshape(*x.shape[:-1], *kernel.shape[:2])
        y = jnp.einsum("...ne,negh->...gnh", heads, kernel, preferred_element_type=wide)
        y = y.reshape(*x.shape[:-1], kernel.size // x.shape[-1] * len(kernel))
    else:
        y = jnp.matmul(x, kernel, preferred_element_type=wide)
    return y if bias is None else y + jnp.broadcast_to(bias.astype(wide), y.shape)
