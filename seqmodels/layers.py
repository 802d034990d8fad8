"""Flax layers around the recurrence: one direction, both directions, stacks, embeddings.

Every recurrent layer maps (x [B, T, E], carry or None) to (y [B, T, H], carry) and takes the
flags of `recurrence.run`: mask or lengths, and reset. `train=True` draws the cell's noise and
dropout from the rng stream "dropout". A single sequence goes without the batch axis everywhere:
x and y [T, ...], flags [T], lengths a number, carries [H].

time_major  x and y are [T, B, ...] instead of [B, T, ...], flags [T, B]; the carry is the same
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from seqmodels import initializers, recurrence
from seqmodels.cells import Cell
from seqmodels.cells.base import check_rate
from seqmodels.types import Array, Carry, Params

MERGES = {
    "concat": lambda forward, backward: jnp.concatenate([forward, backward], axis=-1),
    "sum": lambda forward, backward: forward + backward,
    "mean": lambda forward, backward: 0.5 * (forward + backward),
    "product": lambda forward, backward: forward * backward,
}


class Recurrent(nn.Module):
    """One direction of one layer. Its parameter tree is the cell's.

    reverse  walk from the last real step to the first; y stays aligned with x
    unroll, remat, implementation  as in `recurrence.run`
    """

    cell: Cell
    reverse: bool = False
    time_major: bool = False
    unroll: int = 1
    remat: int | None = None
    implementation: str = "auto"

    @nn.compact
    def __call__(
        self,
        x: Array,
        carry: Carry | None = None,
        *,
        mask: Array | None = None,
        lengths: Any = None,
        reset: Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, Carry]:
        batched = jnp.ndim(x) > 2

        def batch_first(a):
            if a is None:
                return None
            if not batched:
                return jnp.asarray(a)[None]
            return jnp.swapaxes(a, 0, 1) if self.time_major else a

        def as_given(y):
            if not batched:
                return y[0]
            return jnp.swapaxes(y, 0, 1) if self.time_major else y

        if not batched:
            carry = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], carry)
            lengths = None if lengths is None else jnp.asarray(lengths)[None]
        y, carry = recurrence.run(
            self.cell,
            self._cell_params(x.shape[-1]),
            batch_first(x),
            carry,
            mask=batch_first(mask),
            lengths=lengths,
            reset=batch_first(reset),
            reverse=self.reverse,
            unroll=self.unroll,
            remat=self.remat,
            key=self.make_rng("dropout") if train and self.stochastic else None,
            implementation=self.implementation,
        )
        return as_given(y), carry if batched else jax.tree.map(lambda leaf: leaf[0], carry)

    @property
    def stochastic(self) -> bool:
        """Whether a training pass draws anything, so that it needs the rng stream "dropout"."""
        return self.cell.stochastic

    def summary(self, carry: Carry) -> jax.Array:
        """What the layer showed last, [B, H], from its final carry."""
        return self.cell.output(carry)

    def _cell_params(self, in_features: int) -> Params:
        """The cell's own tree, one Flax parameter for each of its top names."""
        tree = jax.eval_shape(lambda key: self.cell.init(key, in_features), jax.random.key(0))
        if any(not self.has_variable("params", name) for name in tree):
            tree = self.cell.init(self.make_rng("params"), in_features)
        # Else shapes alone: Flax compares them with what was stored.

        def values(_, branch):
            return jax.tree.map(
                lambda leaf: (
                    leaf if isinstance(leaf, jax.Array) else jnp.zeros(leaf.shape, leaf.dtype)
                ),
                branch,
            )

        return {name: self.param(name, values, branch) for name, branch in tree.items()}


class Bidirectional(nn.Module):
    """A forward and a backward direction with parameters of their own.

    Carries are {"forward": ..., "backward": ...}. `merge` is "concat" (width 2H), "sum", "mean"
    or "product" (width H). Raises ValueError for another merge.
    """

    cell: Cell
    merge: str = "concat"
    time_major: bool = False
    unroll: int = 1
    remat: int | None = None
    implementation: str = "auto"

    def setup(self):
        if self.merge not in MERGES:
            raise ValueError(f"merge={self.merge!r} is not one of {[*MERGES]}")
        options: dict[str, Any] = {
            "time_major": self.time_major,
            "unroll": self.unroll,
            "remat": self.remat,
            "implementation": self.implementation,
        }
        self.forward = Recurrent(self.cell, **options)
        self.backward = Recurrent(self.cell, reverse=True, **options)

    def __call__(
        self, x: Array, carry: Carry | None = None, **flags: Any
    ) -> tuple[jax.Array, Carry]:
        given = check_names(carry, ("forward", "backward"))
        forward, c_forward = self.forward(x, given["forward"], **flags)
        backward, c_backward = self.backward(x, given["backward"], **flags)
        y = MERGES[self.merge](forward, backward)
        return y, {"forward": c_forward, "backward": c_backward}

    @property
    def stochastic(self) -> bool:
        """As of `Recurrent`."""
        return self.cell.stochastic

    def summary(self, carry: Carry) -> jax.Array:
        """Each direction's last output, merged: both have seen the whole sequence."""
        return MERGES[self.merge](
            self.forward.summary(carry["forward"]), self.backward.summary(carry["backward"])
        )


class Stack(nn.Module):
    """Layers on top of each other, one cell each, with dropout between them.

    `dropout` acts on the output of every layer but the last (PyTorch's `dropout`), with a fresh
    mask each step; `dropout_per_step=False` keeps one mask over time (Gal & Ghahramani 2016,
    arXiv:1512.05287). Carries are {"layer_0": ..., "layer_1": ...}, each that layer's own;
    `stack_carry` and `unstack_carry` turn them into PyTorch's h_n and c_n and back.

    Raises ValueError for an empty stack, for a dropout that is no probability, and for one that
    nothing would apply (a single layer).
    """

    cells: tuple[Cell, ...]
    bidirectional: bool = False
    merge: str = "concat"
    dropout: float = 0.0
    dropout_per_step: bool = True
    time_major: bool = False
    unroll: int = 1
    remat: int | None = None
    implementation: str = "auto"

    def setup(self):
        if not self.cells:
            raise ValueError("cells is empty; a stack has at least one layer")
        check_rate("dropout", self.dropout)
        if self.dropout and len(self.cells) == 1:
            raise ValueError(
                f"dropout={self.dropout} acts between layers, and there is one; "
                "add a layer or use the model's own dropout"
            )
        if not self.dropout_per_step and not self.dropout:
            raise ValueError("dropout_per_step=False, and dropout is 0")
        options: dict[str, Any] = {
            "time_major": self.time_major,
            "unroll": self.unroll,
            "remat": self.remat,
            "implementation": self.implementation,
        }
        if self.bidirectional:
            options["merge"] = self.merge
        kind = Bidirectional if self.bidirectional else Recurrent
        self.layer = [kind(cell, **options) for cell in self.cells]
        time = 0 if self.time_major else -2
        self.between = nn.Dropout(
            self.dropout, broadcast_dims=() if self.dropout_per_step else (time,)
        )

    def __call__(
        self, x: Array, carry: Carry | None = None, *, train: bool = False, **flags: Any
    ) -> tuple[Array, Carry]:
        given = check_names(carry, tuple(f"layer_{i}" for i in range(len(self.cells))))
        final = {}
        for i, (name, layer) in enumerate(zip(given, self.layer, strict=True)):
            if i:
                x = self.between(x, deterministic=not train)
            x, final[name] = layer(x, given[name], train=train, **flags)
        return x, final

    @property
    def stochastic(self) -> bool:
        """As of `Recurrent`; dropout between the layers counts."""
        return self.dropout > 0 or any(cell.stochastic for cell in self.cells)

    def summary(self, carry: Carry) -> jax.Array:
        """What the top layer showed last, from the stack's final carry."""
        top = len(self.cells) - 1
        return self.layer[top].summary(carry[f"layer_{top}"])


def stack_carry(carry: Carry) -> dict[str, jax.Array]:
    """A `Stack`'s named carry as one array a field, [layers * directions, B, H].

    The order is PyTorch's: layer 0 forward, layer 0 backward, layer 1 forward ...; its h_n is
    "h" here, its c_n "c". Raises ValueError for layers of different cells or widths.
    """
    layers = [carry[name] for name in sorted(carry, key=lambda name: int(name.split("_")[1]))]
    ends = [
        end
        for layer in layers
        for end in ((layer["forward"], layer["backward"]) if isinstance(layer, dict) else (layer,))
    ]
    shapes = [{name: leaf.shape for name, leaf in end._asdict().items()} for end in ends]
    for other in shapes:
        if other != shapes[0]:
            raise ValueError(f"carries of different layers cannot be stacked: {shapes[0]}, {other}")
    return {name: jnp.stack([getattr(end, name) for end in ends]) for name in shapes[0]}


def unstack_carry(stack: Stack, stacked: dict[str, Array]) -> Carry:
    """The named carry of `stack` from arrays [layers * directions, B, H]: PyTorch's h_0 and c_0.

    Raises ValueError for other fields than the cells' carries have, or another number of layers.
    """
    directions = ("forward", "backward") if stack.bidirectional else (None,)
    count = len(stack.cells) * len(directions)
    named: dict[str, Any] = {f"layer_{i}": {} for i in range(len(stack.cells))}
    for n in range(count):
        cell, direction = stack.cells[n // len(directions)], directions[n % len(directions)]
        blank = jax.eval_shape(
            lambda key, cell=cell: cell.initial_carry(cell.init(key, 1), 1), jax.random.key(0)
        )
        if set(stacked) != set(blank._fields):
            raise ValueError(f"carry has {sorted(stacked)}; this cell's has {[*blank._fields]}")
        for name, array in stacked.items():
            if len(array) != count:
                raise ValueError(f"carry {name} has shape {array.shape}; expected {count} in front")
        end = blank._replace(**{name: jnp.asarray(array[n]) for name, array in stacked.items()})
        if direction is None:
            named[f"layer_{n}"] = end
        else:
            named[f"layer_{n // 2}"][direction] = end
    return named


class Embed(nn.Module):
    """Vectors for token ids: [B, T] -> [B, T, E].

    An input of `padding_id` reads zeros and passes no gradient; None treats every id alike.
    Padding is never guessed from ids: what counts as a real step is the mask's to say. An id
    outside 0..vocabulary-1 reads NaN, so that it shows.
    """

    vocabulary: int
    features: int
    padding_id: int | None = 0

    def setup(self):
        shape = (self.vocabulary, self.features)
        self.embedding = self.param("embedding", initializers.Normal(1.0), shape, jnp.float32)

    def __call__(self, ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        ids = jnp.asarray(ids)
        if ids.dtype.itemsize < 4:  # may not hold `vocabulary`
            ids = ids.astype(jnp.int32)
        ids = jnp.where(ids < 0, self.vocabulary, ids)
        x = jnp.take(self.embedding, ids, axis=0, mode="fill", fill_value=jnp.nan)
        if self.padding_id is None:
            return x
        return jnp.where((ids == self.padding_id)[:, :, None], jnp.zeros_like(x), x)

    def attend(self, y: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """The product of each y with every vector, for an output that shares them.

        Here the vector of `padding_id` is as good as any: it is not an input.
        """
        return jnp.einsum("bte,ve->btv", y, self.embedding.astype(y.dtype))


def check_names(carry: Carry | None, names: tuple[str, ...]) -> dict[str, Carry]:
    """The carry by name, None for each where none is given; ValueError for other names."""
    if carry is None:
        return dict.fromkeys(names)
    if not isinstance(carry, dict) or set(carry) != set(names):
        given = sorted(carry) if isinstance(carry, dict) else type(carry).__name__
        raise ValueError(f"carry is named {given}; this layer's names are {list(names)}")
    return {name: carry[name] for name in names}
