"""What these files share: the other library must be there, and cannot express all of ours."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import jax
import numpy as np

from seqmodels.types import Params

STARTS = {"features", "input_init", "recurrent_init", "bias_init", "gate_bias"}
"""Settings that say how wide a cell is or how its weights start, not what it computes."""


@contextlib.contextmanager
def needed(library: str) -> Iterator[None]:
    """Around an import of `library`: where it is missing, the error says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        install = "pip install 'seqmodels[interop]'"
        if error.name == library:
            message = f"seqmodels.interop.{library} needs {library}: {install}"
        else:
            message = f"{library} needs {error.name}, which is not installed"
            if library == "keras":  # its default backend
                message += "; KERAS_BACKEND=jax in the environment does without TensorFlow"
        raise ModuleNotFoundError(message, name=error.name) from error


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


def in_features_of(params: Params) -> int:
    """E of the lowest layer, by its parameters; 1 where they hold no input kernel."""
    # Leaves come sorted, so the first input kernel is that of the first layer.
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if "['input']['kernel']" in jax.tree_util.keystr(path):
            return np.shape(leaf)[0]
    return 1
