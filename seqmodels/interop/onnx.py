"""RNN, LSTM and GRU nodes of ONNX models, in only.

    found = from_onnx("model.onnx", node="/encoder/LSTM")
    y, carry = found.layer.apply({"params": found.params}, x, found.carry, lengths=found.lengths)

A node has W [D, G*H, E], R [D, G*H, H] and B [D, 2*G*H], two biases end to end, an LSTM also
peepholes P [D, 3*H]; D is 2 for both directions, forward first. Gates stand in the order
i, o, f, c (LSTM) or z, r, h (GRU), peepholes i, o, f. The two biases are summed, but for the GRU's
candidate: a direction counts H (RNN), 4*H (LSTM) or 2*H (GRU) parameters less here. With
`input_forget` the node takes f = 1 - i and leaves what it has for f unused; our coupled LSTM takes
i = 1 - f, so its f has the numbers of i with the opposite sign.

The node's outputs, in this order, are Y [T, D, B, H], Y_h [D, B, H] and Y_c [D, B, H]; with
`layout` 1 B stands in front. Ours are y [T, B, D*H], or [B, T, D*H] with `layout` 1, and the carry:
h and c [B, H] of each direction. Backwards too, Y stands at the steps of X, and a row of
`sequence_lens` starts at its own last step, as with our `lengths`.

`clip` is our `clip`: the specification says that it bounds the input of activations, and
onnxruntime bounds what ours does, each gate and the candidate with its biases and peephole, but not
the cell before its second tanh, which is an activation's input too. Further differences:

- A row of length 0 ends with zeros in onnxruntime (1.32); here it keeps its start.
- onnxruntime refuses `layout` 1; onnx.reference has it.
- onnx.reference (1.23) overlooks `clip`, `input_forget`, `sequence_lens` and, for LSTM and GRU,
  `activations`; it knows no RNN with Relu.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from seqmodels.cells import GRU, LSTM, RNN, GRUCarry, LSTMCarry, RNNCarry, StandardCell
from seqmodels.interop.express import needed
from seqmodels.layers import Bidirectional, Recurrent, check_layer_params
from seqmodels.types import Carry, Params

with needed("onnx"):
    import onnx
    from onnx import numpy_helper


class Imported(NamedTuple):
    """What a node fixes, and what it leaves to its graph."""

    layer: Recurrent | Bidirectional
    params: Params  # NumPy arrays of the model's dtype
    carry: Carry | None  # where to start, if the model holds it: else None
    lengths: np.ndarray | None  # sequence_lens [B], the same
    feeds: dict[str, str]  # tensors that come to the node at run time, by its inputs: always X


class Kind(NamedTuple):
    cell: type[StandardCell]
    carry: Any
    gates: str  # in ONNX's order
    ours: str  # the same letters in our order
    activations: tuple[tuple[str, ...], ...]  # of one direction


KINDS = {
    "RNN": Kind(RNN, RNNCarry, "h", "h", (("Tanh",), ("Relu",))),
    "LSTM": Kind(LSTM, LSTMCarry, "iofc", "ifco", (("Sigmoid", "Tanh", "Tanh"),)),
    "GRU": Kind(GRU, GRUCarry, "zrh", "rzh", (("Sigmoid", "Tanh"),)),
}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
WEIGHTS = ("W", "R", "B", "P")
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
DEFAULTS = {
    "hidden_size": None,
    "direction": b"forward",
    "layout": 0,
    "clip": None,
    "input_forget": 0,
    "linear_before_reset": 0,
    "activations": (),
    "activation_alpha": (),  # neither is read: Tanh, Sigmoid and Relu have none
    "activation_beta": (),
}


def from_onnx(source: onnx.ModelProto | str | os.PathLike, node: str | None = None) -> Imported:
    """The layer of one RNN, LSTM or GRU node of a model, or of the model file at a path.

    node  the node's name, or that of one of its outputs; None where the model has one such node.
          Nodes inside functions, loops and branches are not looked at.

    W, R, B and P must be initializers or Constant nodes. Initial states and `sequence_lens` that
    are come as `carry` and `lengths`, zeros for a state that the node lacks; those that the graph
    computes or gets from outside are named in `feeds`, for the caller to pass. How the weights of
    the layer would start is not ONNX's to say.

    Raises ValueError, naming node and input or attribute, for other activations and attributes,
    for weights that the graph computes, for two initial states of which the model holds one, and
    for shapes that do not belong together.
    """
    model = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    chosen = _choose(model.graph, node)
    label, kind = _label(chosen), KINDS[chosen.op_type]
    attributes = DEFAULTS | {a.name: onnx.helper.get_attribute_value(a) for a in chosen.attribute}
    for name in attributes:
        if name not in DEFAULTS:
            raise ValueError(f"{label}: attribute {name} is not one of {[*DEFAULTS]}")
    direction, layout = attributes["direction"].decode(), attributes["layout"]
    for name, given, allowed in (
        ("direction", direction, [*DIRECTIONS]),
        ("layout", layout, [0, 1]),
    ):
        if given not in allowed:
            raise ValueError(f"{label}: {name}={given!r} is not one of {allowed}")
    arrays, feeds = _inputs(model.graph, chosen)
    count = DIRECTIONS[direction]
    cell = _cell(kind, label, count, attributes, arrays)
    _check_shapes(kind, label, count, cell.features, layout, arrays)

    if count == 2:
        layer: Recurrent | Bidirectional = Bidirectional(cell, time_major=layout == 0)
    else:
        layer = Recurrent(cell, reverse=direction == "reverse", time_major=layout == 0)
    params = _named(_params(kind, cell, count, arrays))
    check_layer_params(layer, params, arrays["W"].shape[-1])
    carry = _named(_starts(kind, count, layout, arrays))
    return Imported(layer, params, carry, arrays.get("sequence_lens"), feeds)


def _named(ends: Sequence[Any]) -> Any:
    """What belongs to one direction, or to both by name; None if there is nothing."""
    if len(ends) == 2:
        return {"forward": ends[0], "backward": ends[1]}
    return ends[0] if ends else None


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or next(filter(None, node.output), '')}"


def _choose(graph: onnx.GraphProto, name: str | None) -> onnx.NodeProto:
    nodes = [n for n in graph.node if n.op_type in KINDS and n.domain in ("", "ai.onnx")]
    chosen = [n for n in nodes if name is None or name in (n.name, *n.output)]
    if len(chosen) != 1:
        given = [_label(n) for n in nodes]
        raise ValueError(f"node={name!r} is not one of the model's RNN, LSTM, GRU nodes, {given}")
    return chosen[0]


def _inputs(
    graph: onnx.GraphProto, node: onnx.NodeProto
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The node's inputs that the model holds, as arrays, and the names of the others."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    constants = [other for other in graph.node if other.op_type == "Constant"]
    held |= {n.output[0]: a.t for n in constants for a in n.attribute if a.name == "value"}
    names = {key: name for key, name in zip(INPUTS, node.input, strict=False) if name}
    arrays = {
        key: numpy_helper.to_array(held[name])
        for key, name in names.items()
        if name in held and key != "X"
    }
    feeds = {key: name for key, name in names.items() if key not in arrays}
    for key in WEIGHTS:
        if key in feeds:
            makers = [_label(n) for n in graph.node if feeds[key] in n.output]
            raise ValueError(
                f"{_label(node)}: {key} comes from {(makers or ['outside'])[0]}; "
                "it must be an initializer or a Constant"
            )
    for key in ("W", "R"):
        if key not in arrays:
            raise ValueError(f"{_label(node)}: {key} is missing")
    states = [key for key in ("initial_h", "initial_c") if key in names]
    if len({key in arrays for key in states}) == 2:
        raise ValueError(f"{_label(node)}: the model holds one of {states} and computes the other")
    return arrays, feeds


def _cell(
    kind: Kind, label: str, count: int, attributes: dict[str, Any], arrays: dict[str, np.ndarray]
) -> StandardCell:
    """The cell of these attributes; `count` directions share it."""
    given = [name.decode() for name in attributes["activations"]]
    allowed = [[*names] * count for names in kind.activations]
    activations = [name.title() for name in given] or allowed[0]
    if activations not in allowed:
        raise ValueError(f"{label}: activations={given} is not one of {allowed}")
    settings: dict[str, Any] = {"bias": "B" in arrays, "clip": attributes["clip"]}
    if kind.cell is RNN:
        settings["activation"] = activations[0].lower()
    elif kind.cell is LSTM:
        settings["coupled"] = attributes["input_forget"] != 0
        settings["peepholes"] = "P" in arrays
    else:
        settings["reset_after"] = attributes["linear_before_reset"] != 0
    return kind.cell(attributes["hidden_size"] or arrays["R"].shape[-1], **settings)


def _check_shapes(
    kind: Kind, label: str, count: int, width: int, layout: int, arrays: dict[str, np.ndarray]
) -> None:
    """ValueError, naming the input, for a shape; a letter stands for any number."""
    rows = len(kind.gates) * width
    start = (count, "B", width) if layout == 0 else ("B", count, width)
    shapes: dict[str, tuple[int | str, ...]] = {
        "W": (count, rows, "E"),
        "R": (count, rows, width),
        "B": (count, 2 * rows),
        "P": (count, 3 * width),
        "sequence_lens": ("B",),
        "initial_h": start,
        "initial_c": start,
    }
    for name, array in arrays.items():
        wanted = shapes[name]
        fits = array.ndim == len(wanted) and all(
            isinstance(size, str) or size == given
            for size, given in zip(wanted, array.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"{label}: {name} has shape {array.shape}; expected {wanted}")


def _params(
    kind: Kind, cell: StandardCell, count: int, arrays: dict[str, np.ndarray]
) -> list[Params]:
    """Our parameters of each direction."""

    def blocks_of(array: np.ndarray, theirs: str) -> dict[str, np.ndarray]:
        blocks = dict(zip(theirs, np.split(array, len(theirs)), strict=True))
        if isinstance(cell, LSTM) and cell.coupled:
            blocks["f"] = -blocks.pop("i")
        return blocks

    def gates(array: np.ndarray) -> np.ndarray:
        blocks = blocks_of(array, kind.gates)
        return np.concatenate([blocks[letter] for letter in kind.ours if letter in blocks])

    trees = []
    for d in range(count):
        tree: Params = {
            "input": {"kernel": gates(arrays["W"][d]).T},
            "recurrent": {"kernel": gates(arrays["R"][d]).T},
        }
        if cell.bias:
            bias, other = (gates(half) for half in np.split(arrays["B"][d], 2))
            if isinstance(cell, GRU):
                candidate = slice(2 * cell.features, None)
                tree["recurrent"]["bias"] = other[candidate].copy()
                other[candidate] = 0
            tree["input"]["bias"] = bias + other
        if "P" in arrays:
            tree["peephole"] = blocks_of(arrays["P"][d], "iof")
        trees.append(tree)
    return trees


def _starts(kind: Kind, count: int, layout: int, arrays: dict[str, np.ndarray]) -> list[Carry]:
    """The carry that each direction starts from, as far as the model holds it."""
    held = {
        field: np.moveaxis(arrays[f"initial_{field}"], layout, 0)
        for field in kind.carry._fields
        if f"initial_{field}" in arrays
    }
    if not held:
        return []
    absent = np.zeros_like(next(iter(held.values())))
    leaves = [held.get(field, absent) for field in kind.carry._fields]
    return [kind.carry(*(leaf[d] for leaf in leaves)) for d in range(count)]
