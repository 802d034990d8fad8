"""What another library can express: checks that every file of this folder shares."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from seqmodels.layers import Bidirectional, Recurrent, Stack
from seqmodels.types import Params

STARTS = {"features", "input_init", "recurrent_init", "bias_init", "gate_bias"}
"""Settings that say how wide a cell is or how its weights start, not what it computes."""


def refuse_others(module: Any, library: str, expressible: Collection[str]) -> None:
    """ValueError, naming the field, for a setting of a cell or layer that the library lacks.

    `expressible` are the fields that may differ from their defaults.
    """
    for field in dataclasses.fields(module):
        known = field.name in STARTS or field.name in expressible
        if known or not field.init or field.name in ("parent", "name"):  # the last two are Flax's
            continue
        value = getattr(module, field.name)
        if value != field.default:
            name = type(module).__name__
            raise ValueError(f"{library} has no counterpart for {name}({field.name}={value!r})")


def check_params(layer: Recurrent | Bidirectional | Stack, params: Params) -> None:
    """ValueError, naming the leaf, unless `params` are parameters of `layer`."""
    # Leaves come sorted, so the first input kernel is that of the first layer.
    kernels = (
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "['input']['kernel']" in jax.tree_util.keystr(path)
    )
    in_features = np.shape(next(kernels, np.zeros((1, 0))))[0]
    shapes = jax.eval_shape(
        layer.init, jax.random.key(0), np.zeros((1, 1, in_features), np.float32)
    )["params"]
    given, wanted = _shapes(params), _shapes(shapes)
    for path in sorted(given.keys() | wanted.keys()):
        if given.get(path) != wanted.get(path):
            raise ValueError(
                f"params{path} has shape {given.get(path)}; this layer's has {wanted.get(path)}"
            )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}
