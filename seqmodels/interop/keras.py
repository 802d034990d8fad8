"""Keras's SimpleRNN, LSTM and GRU, in one or both directions, alone or on top of each other.

    layer, params = from_keras(keras_layer)
    y, carry = layer.apply({"params": params}, x, mask=mask)
    keras_layer.set_weights(to_keras(layer, params))

A Keras layer has kernel [E, G*H], recurrent_kernel [H, G*H] and bias [G*H]; gates stand in the
order i, f, c, o (LSTM), as here, or z, r, h (GRU), where ours are r, z, n. A GRU with `reset_after`
has two biases, [2, 3*H], of which z and r need the sum alone: on the way out the second is 0 there.
Without `reset_after` it has one, and our d, which is added at the same place, comes in as 0 and
goes out in the sum. So weights survive bit for bit, and biases where the second is 0. A direction
of a GRU counts 2*H parameters less here with `reset_after`, H more without.

Our carry is `initial_state` by name, LSTMCarry(*state); of a Bidirectional the first half is
"forward". `mask` is the same, and `lengths` are a mask. A layer without `return_sequences` shows
`layer.summary(carry)`. Where Keras (3.15 on JAX) differs:

- `go_backwards` with `return_sequences` lists the outputs in the order of the walk, last step
  first; ours stand at their steps, so Keras's are y[:, ::-1]. Its Bidirectional turns them back.
- At a masked step a layer shows its last output again (the initial h where there is none); ours
  shows 0, as with `zero_output_for_mask`, which Bidirectional sets by itself.
- `zero_output_for_mask` without `return_sequences` shows 0 for a row that ends masked; our
  summary is that of the last real step.
- `unroll` forgets `zero_output_for_mask`, in Bidirectional too, and what it shows again is 0 where
  there is no output yet.
- A mixed dtype policy rounds gates and states too; our `dtype` the products alone.

Dropout. `recurrent_dropout` of SimpleRNN is our `hidden_dropout`. `dropout` of the layers of a
stack, but for the lowest, is our Stack's with `dropout_per_step=False`. Other dropout is refused:
nothing here drops the lowest layer's inputs, and Keras draws a mask for each gate
(`recurrent_dropout` of LSTM and GRU) and for each direction, where we draw one.

Initial weights stay behind, but for `unit_forget_bias`; so do `trainable` and `seed`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels import initializers
from seqmodels.cells import GRU, LSTM, RNN, StandardCell
from seqmodels.interop.express import in_features_of, needed, refuse_others
from seqmodels.layers import Bidirectional, Recurrent, Stack, check_layer_params
from seqmodels.types import Params

with needed("keras"):
    import keras

CELLS: dict[type, type[StandardCell]] = {
    keras.layers.SimpleRNNCell: RNN,
    keras.layers.LSTMCell: LSTM,
    keras.layers.GRUCell: GRU,
}
# Exactly these: a subclass may compute anything.
LAYERS = (
    *(keras.layers.RNN, keras.layers.SimpleRNN, keras.layers.LSTM, keras.layers.GRU),
    keras.layers.Bidirectional,
)
GATED = {"activation": ["tanh"], "recurrent_activation": ["sigmoid"]}
ACTIVATIONS = {RNN: {"activation": ["tanh", "relu"]}, LSTM: GATED, GRU: GATED}
# By identity: a function of one's own may have any name.
FUNCTIONS: dict[Any, str] = {
    function: name
    for name, functions in {
        "tanh": (keras.activations.tanh, keras.ops.tanh, jnp.tanh),
        "relu": (keras.activations.relu, keras.ops.relu, jax.nn.relu),
        "sigmoid": (keras.activations.sigmoid, keras.ops.sigmoid, jax.nn.sigmoid),
    }.items()
    for function in functions
}
MERGES = {"concat": "concat", "sum": "sum", "ave": "mean", "mul": "product"}
TRAINING = (
    "activity_regularizer",
    *(
        f"{weight}_{kind}"
        for weight in ("kernel", "recurrent", "bias")
        for kind in ("regularizer", "constraint")
    ),
)
EXPRESSIBLE = {
    RNN: {"dtype", "bias", "activation", "hidden_dropout"},
    LSTM: {"dtype", "bias"},
    GRU: {"dtype", "bias", "reset_after"},
}
AROUND = {
    *("cell", "cells", "reverse", "bidirectional", "merge", "dropout", "dropout_per_step"),
    *("unroll", "remat", "implementation"),
}


def from_keras(source: Any) -> tuple[Recurrent | Bidirectional | Stack, Params]:
    """(layer, params) of a built Keras layer, or of a list of those that feed each other.

    SimpleRNN, LSTM, GRU and RNN around one of their cells become `Recurrent`, with `reverse` for
    `go_backwards`; Bidirectional around them `Bidirectional`; a list of either, and RNN around
    several cells, `Stack`. Parameters are NumPy arrays of the weights' dtype.

    Raises ValueError, naming layer and setting, for what our layers do not compute: another
    activation, `stateful`, dropout but as said above, regularizers and constraints (they are no
    part of the function: set them to None), subclasses, `merge_mode` None, a `backward_layer` of
    other settings, several cells with `go_backwards`; and in a list for `go_backwards`, a lower
    layer without `return_sequences`, one direction above two, unequal merges.
    """
    if isinstance(source, list | tuple):
        if not source:
            raise ValueError("the list is empty; a stack has at least one layer")
        return _stack([_single(layer) for layer in source], source)
    if isinstance(getattr(source, "cell", None), keras.layers.StackedRNNCells):
        _check(source)
        if source.go_backwards:
            raise ValueError(f"{source.path}: go_backwards=True around several cells")
        cells = source.cell.cells
        return _stack([(Recurrent(_cell(cell)), _params(cell)) for cell in cells], cells)
    layer, params = _single(source)
    for cell in _cells(source):
        _refuse(cell, "dropout", cell.dropout)
    return layer, params


def to_keras(layer: Recurrent | Bidirectional | Stack, params: Params) -> list[Any]:
    """The arrays that `set_weights` of a Keras layer of these settings takes.

    For a `Stack` one such list for each layer. Its dropout is keras.layers.Dropout's between them
    (SpatialDropout1D's with `dropout_per_step=False`), which has no weights.

    Raises ValueError, naming the setting, for what Keras cannot express.
    """
    if not isinstance(layer, Recurrent | Bidirectional | Stack):
        raise ValueError(f"{type(layer).__name__} is not one of Recurrent, Bidirectional, Stack")
    refuse_others(layer, "Keras", AROUND)
    cells: Any = layer.cells if isinstance(layer, Stack) else (layer.cell,)
    for cell in cells:
        if type(cell) not in EXPRESSIBLE:
            raise ValueError(f"Keras has no counterpart for {type(cell).__name__}")
        refuse_others(cell, "Keras", EXPRESSIBLE[type(cell)])
    check_layer_params(layer, params, in_features_of(params))
    if isinstance(layer, Stack):
        return [_weights(cell, params[f"layer_{i}"]) for i, cell in enumerate(cells)]
    return _weights(cells[0], params)


def _single(source: Any) -> tuple[Recurrent | Bidirectional, Params]:
    """One layer; what it drops of its inputs is for the caller to judge."""
    if not isinstance(source, keras.layers.Bidirectional):
        _check(source)
        return Recurrent(_cell(source.cell), reverse=source.go_backwards), _params(source.cell)
    forward, backward = source.forward_layer, source.backward_layer
    for layer in (forward, backward, source):
        _check(layer)
    if forward.go_backwards:
        _refuse(forward, "go_backwards", True)
    if source.merge_mode not in MERGES:
        raise ValueError(f"{source.path}: merge_mode={source.merge_mode} is not in {[*MERGES]}")
    cell, other = _cell(forward.cell), _cell(backward.cell)
    if cell != other:
        raise ValueError(f"{source.path}: its directions differ: {cell} and {other}")
    params = {"forward": _params(forward.cell), "backward": _params(backward.cell)}
    return Bidirectional(cell, merge=MERGES[source.merge_mode]), params


def _stack(
    singles: Sequence[tuple[Recurrent | Bidirectional, Params]], sources: Sequence[Any]
) -> tuple[Stack, Params]:
    """Single layers on top of each other; `sources` are the Keras layers or cells they were."""
    layers = [layer for layer, _ in singles]
    for source in sources[:-1]:
        if not getattr(source, "return_sequences", True):
            raise ValueError(f"{source.path}: return_sequences=False, and a layer stands on it")
    for source, layer in zip(sources, layers, strict=True):
        if type(layer) is not type(layers[0]):
            raise ValueError(f"{source.path}: one and two directions in one stack")
        if isinstance(layer, Recurrent) and layer.reverse:
            raise ValueError(f"{source.path}: go_backwards=True in a stack")
    options: dict[str, Any] = {}
    if isinstance(layers[0], Bidirectional):
        merges = sorted({source.merge_mode for source in sources})
        if len(merges) > 1:
            raise ValueError(f"{sources[0].path}: a stack has one merge_mode; given are {merges}")
        options |= {"bidirectional": True, "merge": MERGES[merges[0]]}
    for cell in _cells(sources[0]):
        _refuse(cell, "dropout", cell.dropout)
    upper = [cell for source in sources[1:] for cell in _cells(source)]
    rates = {cell.dropout for cell in upper}
    if rates - {0}:
        one_mask = all(getattr(cell, "implementation", 2) == 2 for cell in upper)
        if len(rates) > 1 or options or not one_mask:
            raise ValueError(
                f"{upper[0].path}: dropout={sorted(rates)} inside a stack; it must be one rate, "
                "in one direction, with implementation=2"
            )
        options |= {"dropout": upper[0].dropout, "dropout_per_step": False}
    stack = Stack(tuple(layer.cell for layer in layers), **options)
    params = {f"layer_{i}": own for i, (_, own) in enumerate(singles)}
    check_layer_params(stack, params, in_features_of(params))
    return stack, params


def _cells(source: Any) -> list[Any]:
    """The Keras cells of a layer, or the cell itself."""
    if isinstance(source, keras.layers.Bidirectional):
        return [source.forward_layer.cell, source.backward_layer.cell]
    return [getattr(source, "cell", source)]


def _check(layer: Any) -> None:
    """ValueError for what surrounds the cell and is not ours to compute."""
    if type(layer) not in LAYERS:
        allowed = [kind.__name__ for kind in LAYERS]
        raise ValueError(f"{type(layer).__name__} is not one of keras.layers {allowed}")
    if not layer.built:
        raise ValueError(f"{layer.name} has no weights yet: call it once, or its build")
    for name in ("stateful", "activity_regularizer"):
        _refuse(layer, name, getattr(layer, name))
    for cell in _cells(layer):
        if cell.compute_dtype != layer.compute_dtype:
            raise ValueError(
                f"{layer.path} computes in {layer.compute_dtype}, its cell in {cell.compute_dtype}"
            )


def _refuse(source: Any, name: str, value: Any) -> None:
    if value:
        raise ValueError(f"{source.path}: {name}={value} has no counterpart here")


def _cell(cell: Any) -> StandardCell:
    """Our cell with the settings of Keras's."""
    kind = CELLS.get(type(cell))
    if kind is None:
        allowed = [known.__name__ for known in CELLS]
        raise ValueError(f"{cell.path}: {type(cell).__name__} is not one of keras.layers {allowed}")
    names = {field: FUNCTIONS.get(getattr(cell, field)) for field in ACTIVATIONS[kind]}
    for field, allowed in ACTIVATIONS[kind].items():
        if names[field] not in allowed:
            given = getattr(cell, field)
            shown = getattr(given, "__name__", type(given).__name__)
            raise ValueError(f"{cell.path}: {field}={shown} is not Keras's {' or '.join(allowed)}")
    for field in TRAINING:
        _refuse(cell, field, getattr(cell, field))
    settings: dict[str, Any] = {"bias": cell.use_bias}
    if cell.compute_dtype != cell.variable_dtype:
        settings["dtype"] = jnp.dtype(cell.compute_dtype)
    if kind is RNN:
        settings |= {"activation": names["activation"], "hidden_dropout": cell.recurrent_dropout}
    else:
        _refuse(cell, "recurrent_dropout", cell.recurrent_dropout)
        forget = getattr(cell, "unit_forget_bias", False)
        settings["gate_bias"] = initializers.Constant(1.0 if forget else 0.0)
    if kind is GRU:
        settings["reset_after"] = cell.reset_after
    return kind(cell.units, **settings)


def _params(cell: Any) -> Params:
    """Our parameters of one direction of one layer."""
    kind = CELLS[type(cell)]
    params: Params = {
        "input": {"kernel": _gates(kind, _to_numpy(cell.kernel))},
        "recurrent": {"kernel": _gates(kind, _to_numpy(cell.recurrent_kernel))},
    }
    if cell.use_bias:
        bias = _gates(kind, _to_numpy(cell.bias))
        if kind is GRU:
            bias, other = bias if cell.reset_after else (bias, np.zeros_like(bias))
            candidate = slice(2 * cell.units, None)
            params["recurrent"]["bias"] = other[candidate].copy()
            other[candidate] = 0
            bias = bias + other
        params["input"]["bias"] = bias
    return params


def _weights(cell: StandardCell, params: Params) -> list[np.ndarray]:
    """Keras's arrays of one layer, from our parameters of one direction or both."""
    if "forward" in params:
        return _weights(cell, params["forward"]) + _weights(cell, params["backward"])
    arrays = [params[half]["kernel"] for half in ("input", "recurrent")]
    if cell.bias:
        bias = np.array(params["input"]["bias"])
        if isinstance(cell, GRU):
            other = np.zeros_like(bias)
            other[2 * cell.features :] = params["recurrent"]["bias"]
            bias = np.stack([bias, other]) if cell.reset_after else bias + other
        arrays.append(bias)
    return [_gates(type(cell), np.asarray(array)) for array in arrays]


def _gates(kind: type[StandardCell], array: np.ndarray) -> np.ndarray:
    """[..., G*H] in the other library's order of gates: z, r, n for r, z, n and back."""
    if kind is not GRU:
        return array
    first, second, candidate = np.split(array, 3, axis=-1)
    return np.concatenate([second, first, candidate], axis=-1)


def _to_numpy(weight: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(weight.value)
