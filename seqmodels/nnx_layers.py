"""The layers of `seqmodels.layers` as Flax NNX modules.

    model = Layer(Recurrent(LSTM(64)), 28, rngs=nnx.Rngs(0))
    y, carry = model(x, mask=mask)          # drawn dropout, if the layer has any: NNX starts so
    model.eval()
    y, carry = model(later, carry)          # a stream goes on

A `Layer` holds one `nnx.Param` for each leaf of the layer's own tree, and its call is the pure
`apply` of that layer: values and gradients are those of Linen, and neither `nnx.scan` nor
`nnx.RNN` takes part. `nnx.state(model, nnx.Param)` is the tree that Linen calls variables,
{"params": ...} by the same names, so a checkpoint of one is a checkpoint of the other.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from seqmodels.layers import Bidirectional, Recurrent, Stack, check_layer_params
from seqmodels.types import Array, Carry, Key, Params


class Layer(nnx.Module):
    """`layer` for inputs of width E = `in_features`, with parameters of its own.

    params         imported ones, as `interop` gives them, instead of new ones
    deterministic  True draws no dropout; `train()`, `eval()` and `nnx.view` set it, as they set it
                   of `nnx.Dropout`
    rngs           stream "params" draws new parameters; stream "dropout" is forked and kept if the
                   layer is stochastic, else there is no state but the parameters

    Raises ValueError for another module or a cell, for parameters of another layer, naming the
    leaf, and for none without rngs.
    """

    def __init__(
        self,
        layer: Recurrent | Bidirectional | Stack,
        in_features: int,
        *,
        params: Params | None = None,
        deterministic: bool = False,
        rngs: nnx.Rngs | None = None,
    ):
        if not isinstance(layer, Recurrent | Bidirectional | Stack):
            kind = type(layer).__name__
            raise ValueError(f"Layer holds a Recurrent, Bidirectional or Stack, not {kind}")
        if params is not None:
            check_layer_params(layer, params, in_features)
        elif rngs is not None:
            x = jnp.zeros((1, 1, in_features), jnp.float32)
            params = layer.init(rngs.params(), x).get("params", {})
        else:
            raise ValueError("Layer: give rngs to draw parameters from, or params")
        self.layer = layer
        self.params = nnx.data(jax.tree.map(lambda leaf: nnx.Param(jnp.asarray(leaf)), params))
        self.deterministic = deterministic
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and layer.stochastic else None)

    def __call__(
        self,
        x: Array,
        carry: Carry | None = None,
        *,
        mask: Array | None = None,
        lengths: Any = None,
        reset: Array | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Key | None = None,
    ) -> tuple[jax.Array, Carry]:
        """(y, final carry) of x and the flags, as of `layer`: [B, T, E] -> [B, T, H].

        `deterministic` and `rngs` go before the module's own. Raises ValueError where dropout is
        to be drawn and there are no rngs.
        """
        train = not (self.deterministic if deterministic is None else deterministic)
        drawn = {}
        if train and self.layer.stochastic:
            rngs = self.rngs if rngs is None else rngs
            if rngs is None:
                raise ValueError("Layer: dropout is drawn from rngs, and there are none; call eval")
            stream = rngs.dropout if isinstance(rngs, nnx.Rngs) else rngs
            drawn["dropout"] = stream() if isinstance(stream, nnx.RngStream) else stream
        flags = {"mask": mask, "lengths": lengths, "reset": reset}
        variables = {"params": self.tree()}
        return self.layer.apply(variables, x, carry, **flags, train=train, rngs=drawn)

    def summary(self, carry: Carry) -> jax.Array:
        """What the layer showed last, [B, H], from its final carry."""
        shown: Any = self.layer.apply({"params": self.tree()}, carry, method="summary")
        return shown

    def tree(self) -> Params:
        """The parameters by our names, as the Linen layer and `interop` take them."""
        return jax.tree.map(
            lambda param: param[...],
            self.params,
            is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
        )

    def set_view(self, deterministic: bool | None = None):
        """For `nnx.view`.

        Args:
          deterministic: True draws no dropout.
        """
        if deterministic is not None:
            self.deterministic = deterministic
