"""Carries of a stack: by name, as ours are, and stacked as PyTorch has them."""

from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.layers.recurrent import Stack, check_names
from seqmodels.types import Array, Carry


def stack_carry(carry: Carry) -> dict[str, jax.Array]:
    """A `Stack`'s named carry as one array a field, [layers * directions, B, H].

    The order is PyTorch's: layer 0 forward, layer 0 backward, layer 1 forward ...; its h_n is
    "h" here, its c_n "c". Raises ValueError for the carry of another layer, and where cells or
    widths differ.
    """
    layers = check_names(carry, tuple(f"layer_{i}" for i in range(len(carry)))).values()
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
        if not isinstance(stacked, dict) or set(stacked) != set(blank._fields):
            given = sorted(stacked) if isinstance(stacked, dict) else type(stacked).__name__
            raise ValueError(f"carry has {given}; this cell's has {[*blank._fields]}")
        for name, array in stacked.items():
            if len(array) != count:
                raise ValueError(f"carry {name} has shape {array.shape}; expected {count} in front")
        end = blank._replace(**{name: jnp.asarray(array[n]) for name, array in stacked.items()})
        if direction is None:
            named[f"layer_{n}"] = end
        else:
            named[f"layer_{n // 2}"][direction] = end
    return named
