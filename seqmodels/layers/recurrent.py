"""Layers around the recurrence: one direction, both directions, stacks."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seqmodels import recurrence
from seqmodels.cells import Cell
from seqmodels.cells.base import check_params, check_rate
from seqmodels.types import Array, Carry, Params

MERGES = {
    "concat": lambda forward, backward: jnp.concatenate([forward, backward], axis=-1),
    "sum": lambda forward, backward: forward + backward,
    "mean": lambda forward, backward: 0.5 * (forward + backward),
    "product": lambda forward, backward: forward * backward,
}
# Settings of `Recurrent` that the layers around it share.
PASSED_ON = ("time_major", "unroll", "remat", "implementation")


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
        if jnp.ndim(x) not in (2, 3):
            raise ValueError(
                f"x has shape {jnp.shape(x)}; expected [B, T, E], or [T, E] of one row"
            )
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
        tree, stored = self.cell.shapes(in_features), self.variables.get("params", {})
        if tree.keys() - stored.keys() and self.is_mutable_collection("params"):
            tree = self.cell.init(self.make_rng("params"), in_features)
        elif tree.keys() != stored.keys():
            where, kind = "/".join(self.path) or "the layer", type(self.cell).__name__
            raise ValueError(f"params of {where} are {[*stored]}; those of {kind} are {[*tree]}")
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
        options: dict[str, Any] = {name: getattr(self, name) for name in PASSED_ON}
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
        if isinstance(self.cells, Cell):
            raise ValueError("cells is a single cell; give a tuple, one cell for each layer")
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
        options: dict[str, Any] = {name: getattr(self, name) for name in PASSED_ON}
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


def check_names(carry: Carry | None, names: tuple[str, ...]) -> dict[str, Carry]:
    """The carry by name, None for each where none is given; ValueError for other names."""
    if carry is None:
        return dict.fromkeys(names)
    if not isinstance(carry, dict) or set(carry) != set(names):
        given = sorted(carry) if isinstance(carry, dict) else type(carry).__name__
        raise ValueError(f"carry is named {given}; this layer's names are {list(names)}")
    return {name: carry[name] for name in names}


def check_layer_params(layer: nn.Module, params: Params, in_features: int) -> None:
    """ValueError, naming the leaf, unless `params` are those of `layer` for inputs of width E."""
    x = jax.ShapeDtypeStruct((1, 1, in_features), jnp.float32)
    check_params(params, jax.eval_shape(layer.init, jax.random.key(0), x).get("params", {}))
