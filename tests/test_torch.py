"""PyTorch's RNN, LSTM and GRU against ours: ragged rows, given starts, random biases, gradients.

The numbers were written once by `fixtures/make_torch.py`; PyTorch itself is not needed.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table import assert_close, jit

from seqmodels.cells import GRU, LSTM, RNN
from seqmodels.layers import Stack

STORED = np.load(Path(__file__).parent / "fixtures" / "torch_rnn.npz")
INPUTS, WIDTH = STORED["x"].shape[-1], STORED["h0"].shape[-1]
CELLS = {
    "rnn_tanh": RNN(WIDTH),
    "rnn_relu": RNN(WIDTH, activation="relu"),
    "lstm": LSTM(WIDTH),
    "gru": GRU(WIDTH),
}
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3}
NAMES = ("forward", "backward")


def from_torch(flat, kind, layers, directions, gradient=False):
    """PyTorch's flat weights, or their gradients, as our tree.

    Its two biases act as their sum, so that each one's gradient is the sum's; but GRU's hidden
    bias of the candidate stands inside the product with the reset gate and stays apart.
    """
    rows, tree = GATES[kind] * WIDTH, {}

    def take(*shape):
        nonlocal flat
        size = int(np.prod(shape))
        array, flat = flat[:size].reshape(shape), flat[size:]
        return array

    for layer in range(layers):
        width = INPUTS if layer == 0 else WIDTH * directions
        for name in NAMES[:directions]:
            W, U, b, d = take(rows, width), take(rows, WIDTH), take(rows), take(rows)
            recurrent = {"kernel": U.T}
            added = d.copy()
            if kind == "gru":
                recurrent["bias"] = d[2 * WIDTH :]
                added[2 * WIDTH :] = 0
            bias = b if gradient else b + added
            tree[layer, name] = {"input": {"kernel": W.T, "bias": bias}, "recurrent": recurrent}
    assert flat.size == 0
    return by_layer(tree, layers, directions)


def by_layer(tree, layers, directions):
    """{(layer, direction): leaf} in a stack's names."""
    return {
        f"layer_{i}": (
            {name: tree[i, name] for name in NAMES} if directions == 2 else tree[i, "forward"]
        )
        for i in range(layers)
    }


def carry_from_torch(kind, layers, directions, h, c=None):
    """PyTorch's [layers * directions, B, H], forward before backward, as a stack's carry."""
    cell, rows = CELLS[kind], iter(range(layers * directions))
    like = jax.eval_shape(lambda: cell.initial_carry({}, h.shape[1]))
    tree = {}
    for i in range(layers):
        for name in NAMES[:directions]:
            row = next(rows)
            tree[i, name] = type(like)(*((h[row],) if kind != "lstm" else (h[row], c[row])))
    return by_layer(tree, layers, directions)


def load(kind, layers, directions):
    prefix = f"{kind}.{layers}.{directions}."
    return {name.removeprefix(prefix): STORED[name] for name in STORED if name.startswith(prefix)}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("layers, directions", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_stack_equals_torch(x64, kind, layers, directions):
    torch, shape = load(kind, layers, directions), (kind, layers, directions)
    params = from_torch(torch["weights"], *shape)
    rows = layers * directions
    start = carry_from_torch(*shape, STORED["h0"][:rows], STORED["c0"][:rows])
    stack = Stack((CELLS[kind],) * layers, directions == 2, implementation="fused")

    def forward(params, x, start):
        return stack.apply({"params": params}, x, start, lengths=jnp.asarray(STORED["lengths"]))

    def loss(*arguments):
        y, final = forward(*arguments)
        terms = [jnp.sum(leaf**2) for leaf in (y, *jax.tree.leaves(final))]
        return sum(terms), (y, final)

    if layers == directions == 2:  # Gradients here; the smaller ones consist of the same.
        slopes = jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
        gradients, (y, final) = slopes(params, STORED["x"], start)
        d_params = from_torch(torch["d_weights"], *shape, gradient=True)
        d_start = carry_from_torch(*shape, torch["dh"], torch.get("dc"))
        assert_close(gradients, (d_params, torch["dx"], d_start), 1e-10)
    else:
        y, final = jit(forward)(params, STORED["x"], start)
    assert_close(y, torch["y"], 1e-10)
    assert_close(final, carry_from_torch(*shape, torch["h"], torch.get("c")), 1e-10)


def test_F05_biases_of_the_fixtures_are_not_zero():
    """Else a conversion that drops or doubles one would pass (case F05)."""
    for kind in CELLS:
        params = from_torch(load(kind, 2, 2)["weights"], kind, 2, 2)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            assert np.abs(leaf).min() > 0, jax.tree_util.keystr(path)
