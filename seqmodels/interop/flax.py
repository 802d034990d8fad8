"""Flax's recurrent cells, Linen's and NNX's: alone, in RNN, and in Bidirectional.

    layer, params = from_flax(nn.RNN(nn.GRUCell(64)), variables["params"])     Linen
    layer, params = from_flax(nnx.RNN(nnx.GRUCell(28, 64, rngs=rngs)))         NNX
    y, carry = layer.apply({"params": params}, x, lengths=lengths)
    variables = {"params": to_flax(layer, params)}                             for Linen
    to_nnx(layer, params, module)                                              into an NNX module

    LSTMCell, OptimizedLSTMCell, GRUCell, SimpleCell, MGUCell (Linen alone)    cells
    RNN                                                                        Recurrent
    Bidirectional                                                              Bidirectional

Gates stand in our order, one submodule each or side by side (`PARTS`), and there is one bias, that
of the LSTM on Flax's hidden side. So all weights survive both ways bit for bit, and counts agree,
but for one: `nnx.GRUCell` has no bias d of the candidate's recurrent half (b_hn of its docstring,
of Linen and of PyTorch). It comes in as zeros, H numbers more for each direction.

New weights start as Linen's defaults do: Lecun normal and orthogonal gate by gate, biases zero, the
MGU's f one. A module's own initialisers are not taken over, nor is `unroll`, which changes no
number. Functions as `gate_fn` are known by identity, which `nnx.clone` keeps and `copy.deepcopy`
does not. A cell that Linen names in its parent is imported as {"cell": params["GRUCell_0"]}.

What differs with the same weights:
- Flax returns (carry, y), with a carry (c, h) of the LSTM and (forward, backward) of two
  directions; `carry_from_flax` and `carry_to_flax` translate.
- `seq_lengths`: after the end of a row Flax shows what the padding makes of the carry, here y is 0.
  A row of length 0 ends in Flax with the carry after all T steps, here with that of its start.
- RNN(reverse=True) shows y backwards unless `keep_order`; here y stays aligned with x, and what is
  not is refused. Bidirectional ignores its RNNs' own reverse, keep_order and time_major.
- `dtype`, if it is not the parameters', becomes the cell's: operands are cast alike, but Flax also
  adds products and biases in it, and here sums and gates are float32. Parameters keep their dtype.
  SimpleCell(dtype=bfloat16) inside RNN, and `param_dtype=bfloat16` of most cells, fail in Flax.
"""

import dataclasses
import operator
from inspect import signature
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

from seqmodels.cells import GRU, LSTM, MGU, RNN, Cell, GRUCarry, LSTMCarry, RNNCarry, StandardCell
from seqmodels.initializers import Constant, lecun_normal, orthogonal
from seqmodels.interop.express import STARTS, in_features_of, refuse_others
from seqmodels.layers import MERGES, Bidirectional, Recurrent, Stack, check_layer_params
from seqmodels.types import Carry, Params

Layer = Cell | Recurrent | Bidirectional | Stack


class Parts(NamedTuple):
    """Submodules of a Flax cell that hold our arrays: one for each gate, or one for all."""

    cell: type[StandardCell]
    input: tuple[str, ...]  # kernel W
    recurrent: tuple[str, ...]  # kernel U
    bias: tuple[str, ...]  # b
    own: str | None = None  # d, the recurrent bias of GRU and MGU


HIDDEN = ("hi", "hf", "hg", "ho")
LINEN_LSTM = Parts(LSTM, ("ii", "if", "ig", "io"), HIDDEN, bias=HIDDEN)
SIDE_BY_SIDE = ("dense_i",), ("dense_h",)
PARTS: dict[type, Parts] = {
    nn.LSTMCell: LINEN_LSTM,
    nn.OptimizedLSTMCell: LINEN_LSTM,
    nn.GRUCell: Parts(GRU, ("ir", "iz", "in"), ("hr", "hz", "hn"), ("ir", "iz", "in"), "hn"),
    nn.MGUCell: Parts(MGU, ("if", "in"), ("hf", "hn"), ("if", "in"), "hn"),
    nn.SimpleCell: Parts(RNN, ("i",), ("h",), ("i",)),
    nnx.LSTMCell: Parts(LSTM, ("ii", "if_", "ig", "io"), HIDDEN, bias=HIDDEN),
    nnx.OptimizedLSTMCell: Parts(LSTM, *SIDE_BY_SIDE, bias=("dense_h",)),
    nnx.GRUCell: Parts(GRU, *SIDE_BY_SIDE, bias=("dense_i",)),
    nnx.SimpleCell: Parts(RNN, *SIDE_BY_SIDE, bias=("dense_i",)),
}
LINEN = {LSTM: nn.LSTMCell, GRU: nn.GRUCell, MGU: nn.MGUCell, RNN: nn.SimpleCell}

FIXED = ("gate_fn", "activation_fn", "carry_init", "residual", "reset_gate", "promote_dtype")
"""Settings of Flax's cells that change the function: only their defaults have a counterpart."""
ACTIVATIONS = {jnp.tanh: "tanh", jax.nn.relu: "relu"}  # of SimpleCell
MERGE_FNS: dict[Any, str] = {
    nn.Bidirectional.merge_fn: "concat",
    nnx.Bidirectional.merge_fn: "concat",
    jnp.add: "sum",
    operator.add: "sum",
    jnp.multiply: "product",
    operator.mul: "product",
    **{merge: name for name, merge in MERGES.items()},
}

FLAX_MGU = {"reset_after": True, "z_keeps": True}
EXPRESSIBLE = {RNN: {"dtype", "activation"}, LSTM: {"dtype"}, GRU: {"dtype"}}
COSTS = {"unroll", "remat", "implementation"}


def from_flax(module: Any, params: Any = None) -> tuple[Layer, Params]:
    """(layer, params) of a cell, RNN or Bidirectional of Linen or NNX; a cell gives a cell.

    params  Linen's variables["params"]; an NNX module holds its own

    Parameters are NumPy arrays of the same dtype. Raises ValueError, naming the setting or the
    array, for other modules, for what has no counterpart here, and for arrays that do not fit.
    """
    if isinstance(module, nnx.Module):
        if params is not None:
            raise ValueError("params are given, and an NNX module holds its own")
        params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    elif params is None:
        raise ValueError("params is None; a Linen module has its parameters beside it")
    arrays = {
        path: np.asarray(leaf) for path, leaf in flatten_dict(nn.unbox(params), sep="/").items()
    }
    layer: Layer
    if type(module) in (nn.Bidirectional, nnx.Bidirectional):
        layer, ours = _bidirectional(module, arrays)
    elif type(module) in (nn.RNN, nnx.RNN):
        if module.reverse and not module.keep_order:
            raise ValueError(
                "RNN(reverse=True, keep_order=False) shows y backwards; set keep_order=True: "
                "here y is aligned with x"
            )
        cell, ours = _cell(module.cell, arrays, "cell/")
        layer = Recurrent(cell, reverse=module.reverse, time_major=module.time_major)
    else:
        layer, ours = _cell(module, arrays, "")
    if arrays:
        raise ValueError(f"{min(arrays)} belongs to no part of this {type(module).__name__}")
    return layer, ours


def to_flax(layer: Layer, params: Params) -> Params:
    """Linen's parameters of the cell, RNN or Bidirectional that computes what `layer` does.

    Raises ValueError, naming the setting, for what Flax cannot express.
    """
    parts = PARTS[LINEN[type(_expressible(layer, params))]]
    if isinstance(layer, Bidirectional):
        return {
            "forward_rnn": {"cell": _theirs(parts, params["forward"])},
            "backward_rnn": {"cell": _theirs(parts, params["backward"])},
        }
    tree = _theirs(parts, params)
    return {"cell": tree} if isinstance(layer, Recurrent) else tree


def to_nnx(layer: Layer, params: Params, module: Any) -> None:
    """Puts `params` into an NNX cell, RNN or Bidirectional that computes what `layer` does.

    Raises ValueError, naming the setting, for what Flax cannot express and for another module.
    """
    _expressible(layer, params)
    ours, theirs = _settings(layer), _settings(from_flax(module)[0])
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            here, there = (repr(settings.get(name)) for settings in (ours, theirs))
            raise ValueError(f"{name} is {here} in layer and {there} in module")
    if isinstance(layer, Bidirectional):
        cells = {"forward": module.forward_rnn.cell, "backward": module.backward_rnn.cell}
        ends = [(cell, params[name]) for name, cell in cells.items()]
    else:
        ends = [(module.cell if isinstance(layer, Recurrent) else module, params)]
    for cell, own in ends:
        width = own["input"]["kernel"].shape[0]
        if width != cell.in_features:
            raise ValueError(f"params read {width} features, module {cell.in_features}")
    trees = [_theirs(PARTS[type(cell)], own) for cell, own in ends]  # all, before any is written
    for (cell, _), tree in zip(ends, trees, strict=True):
        nnx.update(cell, jax.tree.map(jnp.asarray, tree))


def carry_from_flax(layer: Cell | Recurrent | Bidirectional, carry: Any) -> Carry:
    """Our carry of `layer` from Flax's: (c, h) of an LSTM, h of others; (forward, backward)."""
    if isinstance(layer, Bidirectional):
        forward, backward = (carry_from_flax(layer.cell, end) for end in carry)
        return {"forward": forward, "backward": backward}
    cell = layer.cell if isinstance(layer, Recurrent) else layer
    if isinstance(cell, LSTM):
        c, h = carry
        return LSTMCarry(h=h, c=c)
    return GRUCarry(h=carry) if isinstance(cell, GRU) else RNNCarry(h=carry)


def carry_to_flax(carry: Carry) -> Any:
    """The same back."""
    if isinstance(carry, dict):
        return carry_to_flax(carry["forward"]), carry_to_flax(carry["backward"])
    return (carry.c, carry.h) if isinstance(carry, LSTMCarry) else carry.h


def _bidirectional(module: Any, arrays: dict[str, np.ndarray]) -> tuple[Bidirectional, Params]:
    ends = {"forward": module.forward_rnn, "backward": module.backward_rnn}
    for name, end in ends.items():
        if type(end) not in (nn.RNN, nnx.RNN):
            raise ValueError(f"{name}_rnn is a {type(end).__name__}, not an RNN")
    if ends["forward"].cell is ends["backward"].cell:
        raise ValueError("forward_rnn and backward_rnn share their cell; here each has its own")
    if module.merge_fn not in MERGE_FNS:
        raise ValueError(
            f"Bidirectional(merge_fn={module.merge_fn}) is not one of Flax's default, jnp.add, "
            "jnp.multiply and the functions in layers.MERGES"
        )
    cells, params = {}, {}
    for name, end in ends.items():
        cells[name], params[name] = _cell(end.cell, arrays, f"{name}_rnn/cell/")
    cell = cells["forward"]
    if cell != cells["backward"]:
        raise ValueError(f"both directions are alike here; these are {[*cells.values()]}")
    merge = MERGE_FNS[module.merge_fn]
    return Bidirectional(cell, merge=merge, time_major=module.time_major), params


def _cell(module: Any, arrays: dict[str, np.ndarray], prefix: str) -> tuple[StandardCell, Params]:
    """Our cell and parameters of a Flax cell; takes what it uses out of `arrays`."""
    flax_kind = type(module)
    if flax_kind not in PARTS:
        names = [f"{kind.__module__.split('.')[1]}.{kind.__name__}" for kind in PARTS]
        raise ValueError(f"{flax_kind.__name__} is not one of {', '.join(names)}")
    parts = PARTS[flax_kind]
    defaults = signature(flax_kind.__init__).parameters
    allowed = {name: [defaults[name].default] for name in FIXED if name in defaults}
    if parts.cell is RNN:
        allowed["activation_fn"] = [*ACTIVATIONS]
    for name, values in allowed.items():
        if getattr(module, name) not in values:
            value = getattr(module, name)
            raise ValueError(f"{flax_kind.__name__}({name}={value}) has no counterpart here")
    settings: dict[str, Any] = {"input_init": lecun_normal, "recurrent_init": orthogonal}
    if parts.cell is RNN:
        settings["activation"] = ACTIVATIONS[module.activation_fn]
    else:
        settings["gate_bias"] = Constant(1.0 if parts.cell is MGU else 0.0)
    if parts.cell is MGU:
        settings |= FLAX_MGU
    width = module.features if isinstance(module, nn.Module) else module.hidden_features
    cell = parts.cell(width, **settings)
    params = _ours(parts, cell, arrays, prefix)
    if module.dtype is not None and jnp.dtype(module.dtype) != params["input"]["kernel"].dtype:
        cell = dataclasses.replace(cell, dtype=module.dtype)
    return cell, params


def _ours(parts: Parts, cell: StandardCell, arrays: dict[str, np.ndarray], prefix: str) -> Params:
    rows = cell.gates * cell.features

    def take(names: tuple[str, ...], leaf: str, *shape: int) -> np.ndarray:
        """The arrays of `names` side by side, of this shape together."""
        expected, pieces = (*shape[:-1], shape[-1] // len(names)), []
        for name in names:
            path = f"{prefix}{name}/{leaf}"
            if path not in arrays:
                raise ValueError(f"{path} is not among {sorted(arrays)}")
            pieces.append(arrays.pop(path))
            if pieces[-1].shape != expected:
                raise ValueError(f"{path} has shape {pieces[-1].shape}; expected {expected}")
        return np.concatenate(pieces, axis=-1)

    in_features = np.shape(arrays.get(f"{prefix}{parts.input[0]}/kernel", []))[:1]
    params: Params = {
        "input": {"kernel": take(parts.input, "kernel", *in_features, rows)},
        "recurrent": {"kernel": take(parts.recurrent, "kernel", cell.features, rows)},
    }
    params["input"]["bias"] = take(parts.bias, "bias", rows)
    if parts.own:
        params["recurrent"]["bias"] = take((parts.own,), "bias", cell.features)
    elif isinstance(cell, GRU):
        params["recurrent"]["bias"] = np.zeros_like(params["input"]["bias"][: cell.features])
    return params


def _theirs(parts: Parts, params: Params) -> Params:
    """The tree of one Flax cell."""
    tree: Params = {}

    def put(names: tuple[str, ...], leaf: str, array: Any) -> None:
        for name, piece in zip(names, np.split(np.asarray(array), len(names), -1), strict=True):
            tree.setdefault(name, {})[leaf] = piece

    put(parts.input, "kernel", params["input"]["kernel"])
    put(parts.recurrent, "kernel", params["recurrent"]["kernel"])
    put(parts.bias, "bias", params["input"]["bias"])
    own = params["recurrent"].get("bias")
    if parts.own:
        put((parts.own,), "bias", own)
    elif own is not None and np.any(own):
        raise ValueError("nnx.GRUCell has no recurrent bias (b_hn), and this one is not zero")
    return tree


def _expressible(layer: Layer, params: Params) -> StandardCell:
    """The cell of `layer`, or a ValueError that names what Flax lacks or what does not fit."""
    cell = layer.cell if isinstance(layer, Recurrent | Bidirectional) else layer
    if not isinstance(cell, StandardCell) or type(cell) not in LINEN:
        raise ValueError(f"Flax has no counterpart for {type(cell).__name__}")
    if type(cell) is MGU:
        for name, value in FLAX_MGU.items():
            if getattr(cell, name) != value:
                raise ValueError(f"Flax has no counterpart for MGU({name}={not value})")
    refuse_others(cell, "Flax", EXPRESSIBLE.get(type(cell), {"dtype", *FLAX_MGU}))
    if isinstance(layer, Recurrent | Bidirectional):
        refuse_others(layer, "Flax", {"cell", "merge", "reverse", "time_major", *COSTS})
        check_layer_params(layer, params, in_features_of(params))
    else:
        check_layer_params(Recurrent(cell), params, in_features_of(params))
    return cell


def _settings(layer: Layer) -> dict[str, Any]:
    """What decides which function a layer computes, its cell's settings among its own."""
    aside = STARTS - {"features"} | COSTS | {"parent", "name", "cell"}
    parts = {"layer": layer}
    if isinstance(layer, Recurrent | Bidirectional):
        parts["cell"] = layer.cell
    settings = {name: type(part).__name__ for name, part in parts.items()}
    for part in parts.values():
        own = (field.name for field in dataclasses.fields(part))
        settings |= {name: getattr(part, name) for name in own if name not in aside}
    return settings
