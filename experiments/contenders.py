"""The same recurrent model in each library, as its users write it: for `experiments.benchmark`.

One layer over x [B, T, E], a linear map of its last real output to one number, squared error, Adam.
`forward` is the layer alone, y [B, T, H]. With lengths the rows end early, by whatever the library
has for that.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.benchmark_ours import RATE, Contender, Problem, seqmodels


def linen(problem: Problem) -> Contender:
    import flax.linen as nn
    import jax

    cell = {"rnn": nn.SimpleCell, "lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[problem.cell]

    class Model(nn.Module):
        def setup(self):
            self.rnn = nn.RNN(cell(problem.features), return_carry=True)
            self.head = nn.Dense(1)

        def __call__(self, x, lengths):
            carry, _ = self.rnn(x, seq_lengths=lengths)
            return self.head(carry[1] if problem.cell == "lstm" else carry)

        def outputs(self, x, lengths):
            return self.rnn(x, seq_lengths=lengths)[1]

    model = Model()
    params = model.init(jax.random.key(0), problem.x, problem.lengths)
    outputs = functools.partial(model.apply, method="outputs")
    return _optax_user(problem, params, model.apply, outputs, cell.__name__)


def nnx(problem: Problem) -> Contender:
    import jax
    import optax
    from flax import nnx as library

    cells = {"rnn": "SimpleCell", "lstm": "OptimizedLSTMCell", "gru": "GRUCell"}
    cell = getattr(library, cells[problem.cell])

    class Model(library.Module):
        def __init__(self, rngs):
            own = cell(problem.x.shape[-1], problem.features, rngs=rngs)
            self.rnn = library.RNN(own, return_carry=True)
            self.head = library.Linear(problem.features, 1, rngs=rngs)

        def __call__(self, x, lengths):
            carry, _ = self.rnn(x, seq_lengths=lengths)
            return self.head(carry[1] if problem.cell == "lstm" else carry)

    model = Model(library.Rngs(0))
    optimizer = library.Optimizer(model, optax.adam(RATE), wrt=library.Param)

    @library.jit
    def step(model, optimizer, x, target, lengths):
        def loss(model):
            return ((model(x, lengths) - target) ** 2).mean()

        value, slope = library.value_and_grad(loss)(model)
        optimizer.update(model, slope)
        return value

    @library.jit
    def outputs(model, x, lengths):
        return model.rnn(x, seq_lengths=lengths)[1]

    x, target, lengths = (_device(a) for a in (problem.x, problem.target, problem.lengths))
    return Contender(
        lambda: jax.block_until_ready(outputs(model, x, lengths)),
        lambda: jax.block_until_ready(step(model, optimizer, x, target, lengths)),
        note=cell.__name__,
    )


def haiku(problem: Problem) -> Contender:
    import haiku as hk
    import jax
    import jax.numpy as jnp

    class Elman(hk.VanillaRNN):  # Haiku's own has relu
        def __call__(self, inputs, prev_state):
            width = self.hidden_size
            own = hk.Linear(width, with_bias=False, name="recurrent")(prev_state)
            out = jnp.tanh(hk.Linear(width, name="input")(inputs) + own)
            return out, out

    kind = {"rnn": Elman, "lstm": hk.LSTM, "gru": hk.GRU}[problem.cell]

    def unroll(x):
        core = kind(problem.features)
        return hk.dynamic_unroll(core, x, core.initial_state(len(x)), time_major=False)[0]

    def predict(x, lengths):
        y = unroll(x)
        last = y[:, -1] if lengths is None else y[np.arange(len(x)), lengths - 1]
        return hk.Linear(1)(last)

    model: Any = hk.without_apply_rng(hk.transform(predict))
    layer: Any = hk.without_apply_rng(hk.transform(lambda x, lengths: unroll(x)))
    params = model.init(jax.random.key(0), problem.x, problem.lengths)
    note = "reset before the product" if problem.cell == "gru" else ""
    return _optax_user(problem, params, model.apply, layer.apply, note)


def equinox(problem: Problem) -> Contender:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    k_cell, k_input, k_head = jax.random.split(jax.random.key(0), 3)
    inputs, width = problem.x.shape[-1], problem.features

    class Elman(eqx.Module):  # Equinox has no simple recurrent cell
        input: eqx.nn.Linear
        recurrent: eqx.nn.Linear

        def __call__(self, x, h):
            return jnp.tanh(self.input(x) + self.recurrent(h))

    class Model(eqx.Module):
        cell: Any
        head: eqx.nn.Linear

        def outputs(self, x):  # [T, E] -> [T, H], as in Equinox's own RNN example
            h = jnp.zeros(width)

            def body(carry, x):
                carry = self.cell(x, carry)
                return carry, carry[0] if problem.cell == "lstm" else carry

            return jax.lax.scan(body, (h, h) if problem.cell == "lstm" else h, x)[1]

        def __call__(self, x, last):
            return self.head(self.outputs(x)[last])

    if problem.cell == "rnn":
        cell: Any = Elman(
            eqx.nn.Linear(inputs, width, key=k_input),
            eqx.nn.Linear(width, width, use_bias=False, key=k_cell),
        )
    else:
        kind = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[problem.cell]
        cell = kind(inputs, width, key=k_cell)
    model = Model(cell, eqx.nn.Linear(width, 1, key=k_head))
    optimizer = optax.adam(RATE)
    state: list[Any] = [model, optimizer.init(eqx.filter(model, eqx.is_array))]
    rows, length = problem.x.shape[:2]
    last = (np.full(rows, length) if problem.lengths is None else problem.lengths) - 1
    x, target, last = (_device(a) for a in (problem.x, problem.target, last))

    @eqx.filter_jit
    def step(model, opt_state, x, target, last):
        def loss(model):
            return ((jax.vmap(model)(x, last) - target) ** 2).mean()

        value, slope = eqx.filter_value_and_grad(loss)(model)
        updates, opt_state = optimizer.update(slope, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    @eqx.filter_jit
    def outputs(model, x):
        return jax.vmap(model.outputs)(x)

    def train():
        state[0], state[1], value = step(state[0], state[1], x, target, last)
        return jax.block_until_ready(value)

    return Contender(lambda: jax.block_until_ready(outputs(model, x)), train)


def keras(problem: Problem) -> Contender:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras as library

    layers = library.layers
    kind = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}[problem.cell]
    inputs = library.Input(problem.x.shape[1:])
    x, masked = problem.x, inputs
    if problem.lengths is not None:
        inside = np.arange(x.shape[1]) < problem.lengths[:, None]
        x = np.where(inside[:, :, None], x, 0).astype(x.dtype)
        masked = layers.Masking()(inputs)
    y = kind(problem.features, return_sequences=True)(masked)
    outputs = library.Model(inputs, y)
    model = library.Model(inputs, layers.Dense(1)(kind(problem.features)(masked)))
    model.compile(optimizer=library.optimizers.Adam(RATE), loss="mse")
    return Contender(
        lambda: outputs.predict_on_batch(x),
        lambda: model.train_on_batch(x, problem.target),
        note="train_on_batch",
    )


def torch(problem: Problem) -> Contender:
    import torch as library

    kind = getattr(library.nn, problem.cell.upper())
    rnn = kind(problem.x.shape[-1], problem.features, batch_first=True)
    head = library.nn.Linear(problem.features, 1)
    optimizer = library.optim.Adam([*rnn.parameters(), *head.parameters()], lr=RATE)
    x, target = library.from_numpy(problem.x), library.from_numpy(problem.target)
    utils = library.nn.utils.rnn
    lengths = None if problem.lengths is None else library.from_numpy(problem.lengths.astype("i8"))

    def run():
        if lengths is None:
            return rnn(x)
        packed = utils.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, final = rnn(packed)
        return utils.pad_packed_sequence(y, batch_first=True)[0], final

    def train():
        _, final = run()
        h = final[0] if problem.cell == "lstm" else final
        loss = library.nn.functional.mse_loss(head(h[0]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def forward():
        with library.no_grad():
            return run()[0]

    return Contender(forward, train, note=f"{library.get_num_threads()} threads")


LIBRARIES: dict[str, Callable[[Problem], Contender]] = {
    "seqmodels": seqmodels,
    "linen": linen,
    "nnx": nnx,
    "haiku": haiku,
    "equinox": equinox,
    "keras": keras,
    "torch": torch,
}
MODULES = {"linen": "flax", "nnx": "flax"}  # what has to be installed, where its name is another


def _optax_user(problem, params, predict, outputs, note=""):
    """A jitted step per call with optax, as in the examples of Flax and Haiku."""
    import jax
    import optax

    optimizer = optax.adam(RATE)

    @jax.jit
    def step(params, state, x, target, lengths):
        def loss(params):
            return ((predict(params, x, lengths) - target) ** 2).mean()

        value, slope = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(params, updates), state, value

    apply = jax.jit(outputs)
    x, target, lengths = (_device(a) for a in (problem.x, problem.target, problem.lengths))
    own = [params, optimizer.init(params)]

    def train():
        *own[:], value = step(*own, x, target, lengths)
        return jax.block_until_ready(value)

    return Contender(lambda: jax.block_until_ready(apply(params, x, lengths)), train, note=note)


def _device(array):
    import jax

    return None if array is None else jax.device_put(array)
