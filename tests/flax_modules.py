"""Flax's recurrent modules with random numbers in them, and how to call them."""

import operator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from table import jit, normal

from seqmodels.interop.flax import from_flax
from seqmodels.layers import MERGES

LINEN = [nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell, nn.SimpleCell, nn.MGUCell]
NNX = [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell]
KINDS = [*LINEN, *NNX]
ZEROS = {"kernel_init": nn.initializers.zeros, "recurrent_kernel_init": nn.initializers.zeros}
INPUTS, WIDTH = 3, 4


class Case(NamedTuple):
    """A Flax module and its parameters; None for NNX, which holds them."""

    module: Any
    params: Any
    inputs: int


def cell_of(kind, inputs=INPUTS, width=WIDTH, **settings):
    if kind in LINEN:
        return kind(width, **settings)
    return kind(inputs, width, rngs=nnx.Rngs(0), **ZEROS, **settings)


def both_ways(forward, backward, **settings):
    library = nn if isinstance(forward, nn.Module) else nnx
    return library.Bidirectional(library.RNN(forward), library.RNN(backward), **settings)


def filled(module, inputs=INPUTS, seed=0):
    """The case of `module` with random numbers everywhere, biases too."""
    if isinstance(module, nn.Module):
        arguments = (np.zeros((1, 1, inputs), np.float32),)
        if type(module) in KINDS:
            x = arguments[0][0]
            arguments = (module.initialize_carry(jax.random.key(0), x.shape), x)
        shapes = jax.eval_shape(module.init, jax.random.key(0), *arguments)["params"]
        return Case(module, normal(seed, shapes, np.float32, 0.5), inputs)
    numbers = normal(seed, held(module), np.float32, 0.5)
    nnx.update(module, jax.tree.map(jnp.asarray, numbers))
    return Case(module, None, inputs)


def held(module):
    """The parameters in an NNX module, by its names."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def random_case(rng, kind, around):
    """`kind` alone, in RNN or in Bidirectional, of random sizes and settings."""
    library = nn if kind in LINEN else nnx
    inputs, width = int(rng.integers(1, 6)), int(rng.integers(2, 9))
    activation = [jnp.tanh, jax.nn.relu][rng.integers(2)]
    settings = {"activation_fn": activation} if "Simple" in kind.__name__ else {}
    cells = [cell_of(kind, inputs, width, **settings) for _ in range(2)]
    layout = {"time_major": bool(rng.integers(2)), "return_carry": True}
    merges = [library.Bidirectional.merge_fn, operator.add, jnp.multiply, MERGES["mean"]]
    merge, reverse = merges[rng.integers(4)], bool(rng.integers(2))
    module = {
        "cell": lambda: cells[0],
        "RNN": lambda: library.RNN(cells[0], reverse=reverse, keep_order=True, **layout),
        "Bidirectional": lambda: both_ways(*cells, merge_fn=merge, **layout),
    }[around]()
    return filled(module, inputs, int(rng.integers(1000)))


def flax_out(case, *arguments, **flags):
    """What Flax returns, in one compiled call."""
    if case.params is None:
        return jit(lambda: nnx.clone(case.module)(*arguments, **flags))()
    return jit(lambda: case.module.apply({"params": case.params}, *arguments, **flags))()


def our_out(case, *arguments, **flags):
    """(y, carry) of the same module here."""
    layer, params = from_flax(case.module, case.params)
    return jit(lambda: layer.apply({"params": params}, *arguments, **flags))()
