"""Oracles: recurrent cells and the walk over time as NumPy loops in float64.

Written from the papers' equations, one row and one step at a time, without the library. An oracle
takes the options of its cell by the same names. A carry is a dict of arrays [B, ...]; a step maps
(params, carry of one row, x [E], noise) to (carry, y). The noise of a step is None or the masks
(of the sequence, of the step) that the cell has drawn for that row: dicts of flags, or None.
"""

import dataclasses

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def relu(a):
    return np.where(a > 0, a, 0.0)


def norm(a):
    """Layer normalisation without scale and shift (Ba et al. 2016, eq. 3), its epsilon 1e-5."""
    return (a - np.mean(a)) / np.sqrt(np.var(a) + 1e-5)


@dataclasses.dataclass
class Common:
    """What the options that all cells share do to one row."""

    bias: bool = True
    heads: int = 1
    layer_norm: bool = False
    clip: float | None = None
    hidden_dropout: float = 0.0
    candidate_dropout: float = 0.0
    dropout_per_step: bool = False

    def gate(self, params, k, gates):
        """The k-th gate's own W [E, H], b [H] and U [P, H] out of G, the heads of U put in place"""
        W, U = params["input"]["kernel"], params["recurrent"]["kernel"]
        width = W.shape[1] // gates
        own = slice(k * width, (k + 1) * width)
        b = params["input"]["bias"][own] if self.bias else np.zeros(width)
        if self.heads == 1:
            return W[:, own], b, U[:, own]
        dense = np.zeros((U.shape[0] * U.shape[1], width))
        for n, block in enumerate(U[:, :, k]):  # of head n, [P/n, H/n]
            rows, columns = block.shape
            dense[n * rows : (n + 1) * rows, n * columns : (n + 1) * columns] = block
        return W[:, own], b, dense

    def halves(self, params, x, h, group, gates):
        """x W + b and h U of each gate in `group`; their norms are taken over the whole group."""
        W, b, U = zip(*(self.gate(params, k, gates) for k in group), strict=True)
        from_x, from_h = [x @ w for w in W], [h @ u for u in U]
        if self.layer_norm:
            from_x = self.normed(from_x, params["input_norm"]["scale"], group)
            from_h = self.normed(from_h, params["recurrent_norm"]["scale"], group)
        return [a + own for a, own in zip(from_x, b, strict=True)], from_h

    def normed(self, parts, scale, group):
        width = len(parts[0])
        together = norm(np.concatenate(parts))
        return [
            together[n * width : (n + 1) * width] * scale[k * width : (k + 1) * width]
            for n, k in enumerate(group)
        ]

    def bound(self, a):
        return a if self.clip is None else np.minimum(np.maximum(a, -self.clip), self.clip)

    def drop(self, name, a, noise):
        rate = getattr(self, f"{name}_dropout")
        if noise is None or rate == 0:
            return a
        sequence, step = noise
        keep = (step if self.dropout_per_step else sequence)[name]
        return a * keep / (1 - rate)


def rnn(activation="tanh", **options):
    """Elman (1990); Le et al. (2015) for relu. One norm over the sum of both halves."""
    common, act = Common(**options), {"tanh": np.tanh, "relu": relu}[activation]

    def step(params, carry, x, noise):
        W, b, U = common.gate(params, 0, 1)
        a = x @ W + common.drop("hidden", carry["h"], noise) @ U
        if common.layer_norm:
            a = norm(a) * params["norm"]["scale"]
        h = common.drop("candidate", act(common.bound(a + b)), noise)
        return {"h": h}, h

    return step


def lstm(coupled=False, peepholes=False, projection=None, cell_clip=None, **options):
    """Gers et al. (2000); Greff et al. (2017) for the variants, Sak et al. (2014) for projection
    and cell_clip, Ba et al. (2016) eq. 20 to 22 for the norms."""
    common = Common(**options)
    names = ("f", "g", "o") if coupled else ("i", "f", "g", "o")

    def step(params, carry, x, noise):
        h, c = carry["h"], carry["c"]
        seen = common.drop("hidden", h, noise)
        from_x, from_h = common.halves(params, x, seen, range(len(names)), len(names))
        pre = {name: a + b for name, a, b in zip(names, from_x, from_h, strict=True)}

        def gate(name, memory):
            peephole = params["peephole"][name] * memory if peepholes else 0.0
            return sigmoid(common.bound(pre[name] + peephole))

        f = gate("f", c)
        i = 1 - f if coupled else gate("i", c)
        c = f * c + i * common.drop("candidate", np.tanh(common.bound(pre["g"])), noise)
        if cell_clip is not None:
            c = np.minimum(np.maximum(c, -cell_clip), cell_clip)
        o, shown = gate("o", c), c
        if common.layer_norm:
            shown = norm(c) * params["cell_norm"]["scale"]
            shown = shown + (params["cell_norm"]["bias"] if common.bias else 0.0)
        h = o * np.tanh(shown)
        if projection is not None:
            h = h @ params["projection"]["kernel"]
        return {"h": h, "c": c}, h

    return step


def min_gru(bias=True):
    """Feng et al. (2024), section 3.1."""

    def step(params, carry, x, noise):
        z, n = np.split(of_inputs(params, x, bias), 2, axis=-1)
        h = (1 - sigmoid(z)) * carry["h"] + sigmoid(z) * n
        return {"h": h}, h

    return step


def min_lstm(bias=True):
    """Feng et al. (2024), section 3.2."""

    def step(params, carry, x, noise):
        i, f, g = np.split(of_inputs(params, x, bias), 3, axis=-1)
        total = sigmoid(i) + sigmoid(f)
        h = sigmoid(f) / total * carry["h"] + sigmoid(i) / total * g
        return {"h": h}, h

    return step


def lru(**of_the_start):
    """Orvieto et al. (2023), eq. 5 to 7."""

    def step(params, carry, x, noise):
        nu, theta, gamma = (params["recurrent"][name] for name in ("nu", "theta", "gamma"))
        re, im = np.split(of_inputs(params, x, False), 2, axis=-1)
        h = np.exp(-np.exp(nu) + 1j * np.exp(theta)) * (carry["re"] + 1j * carry["im"])
        h = h + np.exp(gamma) * (re + 1j * im)
        return {"re": h.real, "im": h.imag}, np.concatenate([h.real, h.imag], axis=-1)

    return step


def of_inputs(params, x, bias):
    z = x @ params["input"]["kernel"]
    return z + params["input"]["bias"] if bias else z


def gru(reset_after=True, z_keeps=True, gates=3, **options):
    """Cho et al. (2014), with r before the product or after it. Two gates: r = z."""
    common = Common(**options)
    candidate = [gates - 1]

    def step(params, carry, x, noise):
        h = carry["h"]
        seen = common.drop("hidden", h, noise)
        from_x, from_h = common.halves(params, x, seen, range(gates - 1), gates)
        pre = [common.bound(a + b) for a, b in zip(from_x, from_h, strict=True)]
        r, z = sigmoid(pre[0]), sigmoid(pre[-1])
        d = params["recurrent"]["bias"] if common.bias else 0.0
        inner = seen if reset_after else r * seen
        [from_x], [from_h] = common.halves(params, x, inner, candidate, gates)
        n = from_x + (r * (from_h + d) if reset_after else from_h + d)
        n = common.drop("candidate", np.tanh(common.bound(n)), noise)
        h = (1 - z) * n + z * h if z_keeps else z * n + (1 - z) * h
        return {"h": h}, h

    return step


def mgu(reset_after=False, z_keeps=False, **options):
    """Zhou et al. (2016): one gate is both r and z."""
    return gru(reset_after, z_keeps, gates=2, **options)


def learned_carry(cell):
    """The start alone is another (`start`)."""
    return cell


def zoneout(cell, h=0.0, c=0.0):
    """Krueger et al. (2017): d h + (1 - d) h', with the masks drawn, or with their mean."""
    rates = {"h": h, "c": c}

    def step(params, carry, x, noise):
        inner, drawn = None, rates
        if noise is not None:
            sequence, now = noise
            inner, drawn = (sequence, now["cell"]), now["zoneout"]
        new, _ = cell(params, carry, x, inner)
        for name, rate in rates.items():
            if rate:
                d = np.asarray(drawn[name], np.float64)
                new[name] = d * carry[name] + (1 - d) * new[name]
        return new, new["h"]

    return step


def running_sum(params, carry, x, noise):
    h = carry["h"] + x
    return {"h": h}, h


def at(tree, *index):
    """The same place of every array in nested dicts; None stays None."""
    if isinstance(tree, dict):
        return {name: at(branch, *index) for name, branch in tree.items()}
    return None if tree is None else tree[index]


def start(params, like):
    """A new sequence's carry, a row like `like`: zeros, or what was learned."""
    learned = params.get("start", {})
    return {k: np.array(learned.get(k, np.zeros(v.shape[1:])), float) for k, v in like.items()}


def run(step, params, x, carry, *, mask=None, reset=None, reverse=False, noise=None):
    """Every row on its own: (y [B, T, H], final carry).

    noise  what a cell drew: (of the sequence, leaves [B, ...]; of the steps, leaves [T, B, ...])
    """
    batch, steps = x.shape[:2]
    mask = np.ones((batch, steps), bool) if mask is None else mask
    reset = np.zeros((batch, steps), bool) if reset is None else reset
    width = sum(leaf.shape[-1] for name, leaf in carry.items() if name in ("h", "re", "im"))
    y = np.zeros((batch, steps, width))
    final = {name: np.array(leaf, np.float64) for name, leaf in carry.items()}
    for row in range(batch):
        state = {name: leaf[row] for name, leaf in final.items()}
        for t in reversed(range(steps)) if reverse else range(steps):
            # Backwards, the border that lies before step t + 1 is met on arriving at t.
            border = t + 1 if reverse else t
            if border < steps and reset[row, border]:
                state = start(params, final)
            if mask[row, t]:
                masks = None if noise is None else (at(noise[0], row), at(noise[1], t, row))
                state, y[row, t] = step(params, state, x[row, t], masks)
        for name, leaf in state.items():
            final[name][row] = leaf
    return y, final
