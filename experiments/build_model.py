"""From config.model and config.cell to a Flax module."""

import dataclasses
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.errors import UserError, at_least, blame, finite, one_of
from experiments.memory import need
from seqmodels import initializers
from seqmodels.cells import CELLS, Cell, LearnedCarry, Zoneout
from seqmodels.layers import MERGES, Embed, Stack
from seqmodels.models import SequenceClassifier, SequenceLabeller
from seqmodels.readout import READOUTS
from seqmodels.types import Spec

INITS = {
    "orthogonal": initializers.orthogonal,
    "identity": initializers.identity,
    "uniform_by_width": initializers.uniform_by_width,
}
DTYPES = ("float32", "bfloat16")
# Fields of a cell that come from config.model instead of config.cell.
BUILT = {
    "features",
    "dtype",
    "activation",
    "input_init",
    "recurrent_init",
    "bias_init",
    "gate_bias",
}


def build_cell(model: ConfigDict, options: ConfigDict) -> Cell:
    one_of("config.model.cell", model.cell, CELLS)
    kind = CELLS[model.cell]
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    one_of("config.model.dtype", model.dtype, DTYPES)
    at_least("config.model.features", model.features, 1)
    for field in ("gate_bias", "input_stddev"):
        finite(f"config.model.{field}", model[field])
    gated = "gate_bias" in known
    settings: dict[str, Any] = {}
    if "recurrent_init" in known:
        one_of("config.model.init", model.init, INITS)
        settings["recurrent_init"] = INITS[model.init]
    else:
        _unused(model, "init", f"for {model.cell}, which has no recurrent matrix")

    if model.init == "uniform_by_width":
        _unused(model, "input_stddev", "with init=uniform_by_width, which draws every weight")
        settings |= {"input_init": INITS[model.init], "bias_init": INITS[model.init]}
    elif model.input_stddev is not None:
        at_least("config.model.input_stddev", model.input_stddev, 0.0)
        settings["input_init"] = initializers.Normal(model.input_stddev)

    if "activation" in known:
        settings["activation"] = model.activation
    else:
        _unused(model, "activation", f"for {model.cell}")
    if gated and options.get("bias") is False:
        for field in ("gate_bias", "chrono_length"):
            _unused(model, field, f"for {model.cell} with config.cell.bias=False")
    elif gated:
        if (model.gate_bias is None) == (model.chrono_length is None):
            raise UserError(
                f"give one of config.model.gate_bias={model.gate_bias} and "
                f"config.model.chrono_length={model.chrono_length}, and None for the other"
            )
        with blame("config.model.chrono_length"):
            settings["gate_bias"] = (
                initializers.Constant(model.gate_bias)
                if model.chrono_length is None
                else initializers.Chrono(model.chrono_length)
            )
    else:
        _unused(model, "gate_bias", f"for {model.cell}, which has no gates")
        _unused(model, "chrono_length", f"for {model.cell}, which has no gates")
    chosen = {name: value for name, value in options.items() if value is not None}
    around = {
        name: chosen.pop(name)
        for name in ("learned_carry", "zoneout_h", "zoneout_c")
        if name in chosen
    }
    for name in chosen:
        if name not in known - BUILT:
            raise UserError(
                f"config.cell.{name} is no option of {model.cell}; known: {sorted(known - BUILT)}"
            )
    with blame("config.cell"):
        cell: Cell = kind(model.features, dtype=model.dtype, **settings, **chosen)
        if around.get("learned_carry"):
            cell = LearnedCarry(cell)
        rates = {name[-1]: around.get(name, 0.0) for name in ("zoneout_h", "zoneout_c")}
        return Zoneout(cell, **rates) if any(rates.values()) else cell


def build_model(
    model: ConfigDict, options: ConfigDict, spec: Spec, frequencies: np.ndarray | None = None
) -> SequenceClassifier | SequenceLabeller:
    """`frequencies` of yes for each output in training, where the data set tells."""
    cell = build_cell(model, options)
    at_least("config.model.layers", model.layers, 1)
    need(4.0 * model.layers * model.features, "one row of memory in each layer")
    for field in ("input_dropout", "layer_dropout", "head_dropout"):
        if not 0 <= model[field] < 1:
            raise UserError(
                f"config.model.{field}={model[field]} must be from 0 up to, not incl., 1"
            )
    if model.layers == 1 and model.layer_dropout:
        raise UserError(
            f"config.model.layer_dropout={model.layer_dropout} acts between layers and there is "
            "one; use config.model.head_dropout or more config.model.layers"
        )
    if model.bidirectional:
        one_of("config.model.merge", model.merge, MERGES)
    else:
        _unused(model, "merge", "with one direction")
    stack = Stack(
        cells=(cell,) * model.layers,
        bidirectional=model.bidirectional,
        merge=model.merge or "concat",
        dropout=model.layer_dropout,
    )

    embed = None
    if spec.tokens:
        if model.embedding is None:
            raise UserError("config.model.embedding is None; inputs are tokens and need a width")
        at_least("config.model.embedding", model.embedding, 1)
        embed = Embed(spec.inputs, model.embedding)
    else:
        _unused(model, "embedding", "for inputs that are numbers")

    if spec.per_step:
        _unused(model, "readout", "for one answer a step")
        if model.tied and (embed is None or spec.inputs != spec.outputs):
            raise UserError("config.model.tied=True: inputs and outputs are not the same tokens")
        width = cell.out_features * (2 if model.bidirectional and model.merge == "concat" else 1)
        if model.tied and width != model.embedding:
            raise UserError(
                f"config.model.tied=True: config.model.embedding={model.embedding} must be the "
                f"width of the stack's output, {width}"
            )
        return SequenceLabeller(
            stack,
            spec.outputs,
            embed,
            dropout=model.head_dropout,
            input_dropout=model.input_dropout,
            start=_log_odds(model, frequencies),
            tied=bool(model.tied),
        )
    _unused(model, "head_start", "for one answer a sequence")
    _unused(model, "tied", "for one answer a sequence")
    one_of("config.model.readout", model.readout, READOUTS)
    return SequenceClassifier(
        stack,
        spec.outputs,
        embed,
        readout=model.readout,
        dropout=model.head_dropout,
        input_dropout=model.input_dropout,
    )


def _log_odds(model: ConfigDict, frequencies: np.ndarray | None) -> tuple[float, ...] | None:
    if model.head_start is None:
        return None
    one_of("config.model.head_start", model.head_start, ("frequencies",))
    if frequencies is None:
        raise UserError(
            f"config.model.head_start={model.head_start!r} is for data of yes/no outputs whose "
            "frequencies are known (music); set it to None"
        )
    return tuple(np.log(frequencies / (1 - frequencies)).tolist())


def _unused(model: ConfigDict, field: str, when: str) -> None:
    if model[field] is not None:
        raise UserError(
            f"config.model.{field}={model[field]!r} does nothing {when}; set it to None"
        )
