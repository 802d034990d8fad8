"""PyTorch's RNN, LSTM and GRU: all layers, both directions, projections.

    layer, params = from_torch(module)
    y, carry = layer.apply({"params": params}, x)
    h_n = layers.stack_carry(carry)["h"]
    module.load_state_dict(to_torch(layer, params))

A layer k has weight_ih_l{k} [G*H, E], weight_hh_l{k} [G*H, H], bias_ih_l{k} and bias_hh_l{k} [G*H],
with proj_size also weight_hr_l{k} [P, H]; the backward direction ends in _reverse. Gates stand in
the same order as here. PyTorch adds its two biases; here one suffices, but for the candidate of
the GRU, whose second bias stands inside the product with r. So they are summed on the way in, and
on the way out bias_ih has the sum and bias_hh zeros: outputs agree, weights survive bit for bit,
biases do where bias_hh is zero. A layer counts G*H (GRU: 2*H) parameters less for each direction.

`lengths` give what a packed sequence gives: zeros after the end, and the final carry of the last
real step. PyTorch refuses a length of 0; here such a row keeps its initial carry.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from seqmodels import initializers
from seqmodels.cells import GRU, LSTM, RNN, StandardCell
from seqmodels.interop.express import in_features_of, needed, refuse_others
from seqmodels.layers import Stack, check_layer_params
from seqmodels.types import Params

GATES: dict[int, type[StandardCell]] = {1: RNN, 3: GRU, 4: LSTM}
EXPRESSIBLE = {RNN: {"bias", "activation"}, LSTM: {"bias", "projection"}, GRU: {"bias"}}


def from_torch(
    source: Any, *, prefix: str = "", nonlinearity: str | None = None
) -> tuple[Stack, Params]:
    """(layer, params) of a torch.nn.RNN, LSTM or GRU, or of a state_dict of one.

    prefix        of the names in the state_dict of a larger model, as "encoder.rnn."; names that
                  start otherwise belong to other parts
    nonlinearity  "tanh" or "relu": of an RNN's state_dict, which does not say

    The layer has the module's layout (`batch_first`), dropout and starts of weights; that of a
    state_dict, of tensors or other arrays, is batch first and without dropout. Parameters are NumPy
    arrays of the same dtype.

    Raises ValueError for another module, for a subclass (which may compute anything; its state_dict
    is taken), and for names or shapes that do not belong together.
    """
    options: dict[str, Any] = {}
    source = getattr(source, "_orig_mod", source)  # of torch.compile
    if hasattr(source, "state_dict"):
        if prefix or nonlinearity is not None:
            raise ValueError("prefix and nonlinearity are for a state_dict; a module has its own")
        if not _is_plain(source):
            raise ValueError(
                f"{type(source).__name__} is not one of torch.nn.RNN, LSTM, GRU itself; "
                "give its part that is, or a state_dict and the prefix of its names"
            )
        if source.mode.startswith("RNN"):
            nonlinearity = source.mode[4:].lower()
        options["time_major"] = not source.batch_first
        if source.num_layers > 1:
            options["dropout"] = float(source.dropout)
        source = source.state_dict()
    if not isinstance(source, Mapping):
        raise ValueError(f"{type(source).__name__} is neither a module nor a state_dict")
    arrays = {
        name[len(prefix) :]: _to_numpy(tensor)
        for name, tensor in source.items()
        if name.startswith(prefix)
    }
    cell = _cell(arrays, nonlinearity)
    bidirectional = "weight_ih_l0_reverse" in arrays
    count = sum("weight_ih_l" in name for name in arrays) // (1 + bidirectional)
    layer = Stack((cell,) * count, bidirectional=bidirectional, **options)
    params: Params = {}
    width = np.shape(arrays.get("weight_ih_l0", [[]]))[-1]
    for k in range(count):
        forward = _direction(cell, width, arrays, f"_l{k}")
        params[f"layer_{k}"] = forward
        if bidirectional:
            backward = _direction(cell, width, arrays, f"_l{k}_reverse")
            params[f"layer_{k}"] = {"forward": forward, "backward": backward}
        width = cell.out_features * (1 + bidirectional)
    if arrays:
        raise ValueError(f"{sorted(arrays)[0]} belongs to no layer of this {type(cell).__name__}")
    return layer, params


def to_torch(layer: Stack, params: Params) -> dict[str, Any]:
    """The state_dict of the torch.nn.RNN, LSTM or GRU that computes what `layer` does.

    Raises ValueError, naming the setting, for what PyTorch cannot express.
    """
    with needed("torch"):
        import torch

    if not isinstance(layer, Stack):
        raise ValueError(f"{type(layer).__name__} is not a Stack; PyTorch's layers are stacks")
    cell = layer.cells[0]
    kind = type(cell)
    if kind not in EXPRESSIBLE:
        raise ValueError(f"PyTorch has no counterpart for {kind.__name__}")
    for other in layer.cells:
        if other != cell:
            raise ValueError(f"PyTorch's layers are all alike; here are {cell} and {other}")
    refuse_others(cell, "PyTorch", EXPRESSIBLE[kind])
    runs = {"cells", "bidirectional", "dropout", "time_major", "unroll", "remat", "implementation"}
    refuse_others(layer, "PyTorch", runs)
    check_layer_params(layer, params, in_features_of(params))
    state = {}
    for k in range(len(layer.cells)):
        own = params[f"layer_{k}"]
        directions = {"": own}
        if layer.bidirectional:
            directions = {"": own["forward"], "_reverse": own["backward"]}
        for suffix, direction in directions.items():
            for name, array in _arrays(direction).items():
                array = np.array(array, order="C")
                if array.dtype == jnp.bfloat16:
                    tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
                else:
                    tensor = torch.from_numpy(array)
                state[f"{name}_l{k}{suffix}"] = tensor
    return state


def _cell(arrays: Mapping[str, np.ndarray], nonlinearity: str | None) -> StandardCell:
    """The cell whose parameters have these names and shapes."""
    if "weight_hh_l0" not in arrays:
        raise ValueError(f"weight_hh_l0 is not among {sorted(arrays)}; is a prefix missing?")
    rows, width = arrays["weight_hh_l0"].shape
    settings: dict[str, Any] = {"bias": "bias_ih_l0" in arrays}
    if "weight_hr_l0" in arrays:
        settings["projection"], width = arrays["weight_hr_l0"].shape
    if rows % width or rows // width not in GATES:
        raise ValueError(
            f"weight_hh_l0 has shape {(rows, width)}, not one of [G*H, H], G in 1, 3, 4"
        )
    kind = GATES[rows // width]
    if kind is RNN:
        if nonlinearity is None:
            raise ValueError("a state_dict does not say the RNN's nonlinearity; give it")
        settings["activation"] = nonlinearity
    elif nonlinearity is not None:
        raise ValueError(f"nonlinearity={nonlinearity!r}, and these are weights of {kind.__name__}")
    else:
        settings["gate_bias"] = initializers.Constant(0.0)
    if kind is not LSTM and "projection" in settings:
        raise ValueError(f"weight_hr_l0 belongs to an LSTM, and weight_hh_l0 to {kind.__name__}")
    uniform = initializers.uniform_by_width
    return kind(width, input_init=uniform, recurrent_init=uniform, bias_init=uniform, **settings)


def _direction(
    cell: StandardCell, in_features: int, arrays: dict[str, np.ndarray], suffix: str
) -> Params:
    """Our parameters of one layer and direction; takes what it uses out of `arrays`."""
    rows = cell.gates * cell.features

    def take(name: str, *shape: int) -> np.ndarray:
        if name + suffix not in arrays:
            raise ValueError(f"{name}{suffix} is missing")
        array = arrays.pop(name + suffix)
        if array.shape != shape:
            raise ValueError(f"{name}{suffix} has shape {array.shape}; expected {shape}")
        return array

    params: Params = {
        "input": {"kernel": take("weight_ih", rows, in_features).T},
        "recurrent": {"kernel": take("weight_hh", rows, cell.out_features).T},
    }
    if cell.bias:
        bias, other = take("bias_ih", rows), take("bias_hh", rows)
        if isinstance(cell, GRU):
            candidate = slice(2 * cell.features, None)
            params["recurrent"]["bias"] = other[candidate].copy()
            other = other.copy()
            other[candidate] = 0
        params["input"]["bias"] = bias + other
    if getattr(cell, "projection", None) is not None:
        params["projection"] = {"kernel": take("weight_hr", cell.out_features, cell.features).T}
    return params


def _arrays(params: Params) -> dict[str, np.ndarray]:
    """PyTorch's arrays of one layer and direction."""
    inputs, recurrent = params["input"], params["recurrent"]
    arrays = {
        "weight_ih": np.asarray(inputs["kernel"]).T,
        "weight_hh": np.asarray(recurrent["kernel"]).T,
    }
    if "bias" in inputs:
        bias = np.asarray(inputs["bias"])
        arrays["bias_ih"], arrays["bias_hh"] = bias, np.zeros_like(bias)
        if "bias" in recurrent:
            arrays["bias_hh"][-len(recurrent["bias"]) :] = recurrent["bias"]
    if "projection" in params:
        arrays["weight_hr"] = np.asarray(params["projection"]["kernel"]).T
    return arrays


def _is_plain(module: Any) -> bool:
    """Whether it is one of PyTorch's own three, as it is or scripted."""
    name = getattr(module, "original_name", type(module).__name__)
    return name in ("RNN", "LSTM", "GRU") and type(module).__module__.startswith("torch.")


def _to_numpy(tensor: Any) -> np.ndarray:
    if not hasattr(tensor, "detach"):  # as NumPy's readers of safetensors give
        return np.array(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy knows no such dtype of its own
        import torch

        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy().copy()
