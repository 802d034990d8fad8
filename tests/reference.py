"""Oracles: recurrent cells and the walk over time as NumPy loops in float64.

Written from the papers' equations, one row and one step at a time, without the library. A carry
is a dict of arrays [B, ...]; a step maps (params, carry of one row, x [E]) to (carry, y).
"""

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def relu(a):
    return np.where(a > 0, a, 0.0)


def gate(params, k, width):
    """The k-th gate's own W [E, H], b [H] and U [H, H]."""
    own = slice(k * width, (k + 1) * width)
    inputs = params["input"]
    return inputs["kernel"][:, own], inputs["bias"][own], params["recurrent"]["kernel"][:, own]


def rnn(activation):
    def step(params, carry, x):
        W, b, U = gate(params, 0, len(carry["h"]))
        h = activation(x @ W + b + carry["h"] @ U)
        return {"h": h}, h

    return step


def lstm(params, carry, x):
    h, c = carry["h"], carry["c"]
    pre = []
    for k in range(4):
        W, b, U = gate(params, k, len(h))
        pre.append(x @ W + b + h @ U)
    i, f, o = sigmoid(pre[0]), sigmoid(pre[1]), sigmoid(pre[3])
    c = f * c + i * np.tanh(pre[2])
    h = o * np.tanh(c)
    return {"h": h, "c": c}, h


def gru(reset_after):
    def step(params, carry, x):
        h = carry["h"]
        (Wr, br, Ur), (Wz, bz, Uz), (Wn, bn, Un) = (gate(params, k, len(h)) for k in range(3))
        d = params["recurrent"]["bias"]
        r = sigmoid(x @ Wr + br + h @ Ur)
        z = sigmoid(x @ Wz + bz + h @ Uz)
        inner = r * (h @ Un + d) if reset_after else (r * h) @ Un + d
        h = (1 - z) * np.tanh(x @ Wn + bn + inner) + z * h
        return {"h": h}, h

    return step


def running_sum(params, carry, x):
    h = carry["h"] + x
    return {"h": h}, h


def run(step, params, x, carry, *, initial=None, mask=None, reset=None, reverse=False):
    """Every row on its own: (y [B, T, H], final carry). `initial` is the carry after a reset."""
    batch, steps = x.shape[:2]
    mask = np.ones((batch, steps), bool) if mask is None else mask
    reset = np.zeros((batch, steps), bool) if reset is None else reset
    initial = {k: np.zeros_like(v) for k, v in carry.items()} if initial is None else initial
    y = np.zeros((batch, steps, carry["h"].shape[-1]))
    final = {name: np.array(leaf, np.float64) for name, leaf in carry.items()}
    for row in range(batch):
        state = {name: leaf[row] for name, leaf in final.items()}
        for t in reversed(range(steps)) if reverse else range(steps):
            # Backwards, the border that lies before step t + 1 is met on arriving at t.
            border = t + 1 if reverse else t
            if border < steps and reset[row, border]:
                state = {name: leaf[row] for name, leaf in initial.items()}
            if mask[row, t]:
                state, y[row, t] = step(params, state, x[row, t])
        for name, leaf in state.items():
            final[name][row] = leaf
    return y, final
