"""Conventions and equations of single options, and what a cell of one's own may leave unsaid."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from table import PROBES, TABLE, WIDTH, assert_close, changed, data_of, jit, run_with_gradients

from seqmodels.cells import GRU, LSTM, MGU, RNN, LearnedCarry, Zoneout

# Equations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("options", [{}, {"clip": 0.9, "heads": 2}], ids=["plain", "rich"])
def test_F02_negating_z_turns_one_convention_into_the_other(x64, reset_after, options):
    """As the docstring says: W_z, b_z and U_z, and nothing else."""
    keeps = GRU(WIDTH, reset_after=reset_after, **options)
    data = data_of(keeps)
    params = jax.tree.map(np.copy, data.params)
    z = slice(WIDTH, 2 * WIDTH)
    for leaf in (params["input"]["kernel"][:, z], params["input"]["bias"][z]):
        leaf *= -1
    kernel = params["recurrent"]["kernel"]
    kernel[(slice(None),) * 2 + (1,) if kernel.ndim == 4 else (slice(None), z)] *= -1
    writes = dataclasses.replace(keeps, z_keeps=False)
    x, carry = data.x[:, 0], data.carry
    expected = keeps.step(data.params, carry, x)
    assert_close(writes.step(params, carry, x), expected, 1e-12)
    assert np.abs(writes.step(data.params, carry, x)[1] - expected[1]).max() > 0.1


def test_mgu_as_documented(x64):
    """Its docstring's equations, and those of Flax's MGUCell, written out."""
    for cell, flax in ((MGU(WIDTH), False), (MGU(WIDTH, reset_after=True, z_keeps=True), True)):
        params, x, (h,), *_ = data_of(cell)
        x, sigmoid = x[:, 0], reference.sigmoid
        Wf, Wn = np.split(params["input"]["kernel"], 2, axis=1)
        bf, bn = np.split(params["input"]["bias"][None], 2, axis=1)
        Uf, Un = np.split(params["recurrent"]["kernel"], 2, axis=1)
        d = params["recurrent"]["bias"][None]
        f = sigmoid(x @ Wf + bf + h @ Uf)
        if flax:
            n = np.tanh(x @ Wn + bn + f * (h @ Un + d))
            expected = (1 - f) * n + f * h
        else:
            n = np.tanh(x @ Wn + bn + (f * h) @ Un + d)
            expected = (1 - f) * h + f * n
        assert_close(cell.step(params, data_of(cell).carry, x)[1], expected, 1e-12)


HEADED = {  # without what mixes heads by intention
    name: changed(entry.cell, layer_norm=False)
    for name, entry in TABLE.items()
    if getattr(entry.cell, "heads", 1) > 1 and entry.cell.out_features == WIDTH
}


@pytest.mark.parametrize("cell", HEADED.values(), ids=list(HEADED))
def test_a_head_never_reaches_another(cell):
    """The Jacobian of the next carry by the carry is block-diagonal, and dense in its blocks."""
    params, x, carry, *_ = data_of(cell, np.float32)

    def after(carry):
        return cell.step(params, carry, x[:1, 0])[0]

    table = jit(jax.jacrev(after))(jax.tree.map(lambda leaf: leaf[:1], carry))
    reached = np.zeros((WIDTH, WIDTH), bool)
    for leaf in jax.tree.leaves(table):  # of each field by each field, [1, H, 1, H]
        reached |= np.asarray(leaf)[0, :, 0, :] != 0
    size = WIDTH // cell.heads
    same = np.arange(WIDTH)[:, None] // size == np.arange(WIDTH) // size
    assert not np.any(reached & ~same)
    alive = reached.any(axis=1)  # a clipped or dead unit passes nothing
    assert alive.sum() > 2 and np.all(reached[alive].sum(axis=1) > 1)


# What enters `update` as a sum --------------------------------------------------------------------


class Bent(LSTM):
    """`update` reads u apart from z, and the class did not say anew whether it adds them."""

    def update(self, params, carry, z, u, noise=None):
        return super().update(params, carry, z, jnp.tanh(u), noise)


class BentSaid(Bent):
    @property
    def additive(self):
        return True


class Halved(RNN):
    """Reads the sum alone, and says so."""

    @property
    def additive(self):
        return True

    def update(self, params, carry, z, u, noise=None):
        return super().update(params, carry, 0.5 * z, 0.5 * u, noise)


class Renamed(RNN):
    """Changes nothing that matters."""

    def output(self, carry):
        return 2 * carry.h


class Mixin:
    def update(self, params, carry, z, u, noise=None):
        return super().update(params, carry, z, jnp.sin(u), noise)


class Mixed(Mixin, RNN):
    pass


ADDS = [
    (RNN(WIDTH), True),
    (LSTM(WIDTH, coupled=True), True),
    (LSTM(WIDTH, layer_norm=True), False),
    (GRU(WIDTH), False),
    (MGU(WIDTH), False),
    (Bent(WIDTH), False),
    (BentSaid(WIDTH), True),  # what a class says of itself is believed
    (Halved(WIDTH), True),
    (Renamed(WIDTH), True),
    (Mixed(WIDTH), False),
    (LearnedCarry(LSTM(WIDTH)), True),
    (LearnedCarry(Bent(WIDTH)), False),
    (Zoneout(LSTM(WIDTH), h=0.1), True),
    (Zoneout(LearnedCarry(Bent(WIDTH)), h=0.1, c=0.2), False),
]


def test_who_adds():
    assert [cell.adds for cell, _ in ADDS] == [adds for _, adds in ADDS]
    assert not any(entry.cell.adds for entry in PROBES.values())


@pytest.mark.parametrize(
    "cell",
    [Bent(WIDTH), Halved(WIDTH), Mixed(WIDTH), Zoneout(LearnedCarry(Bent(WIDTH)), h=0.1, c=0.2)],
    ids=lambda cell: repr(cell)[:20],
)
def test_cells_of_ones_own_are_the_same_in_both_implementations(x64, cell):
    data = data_of(cell)
    expected = run_with_gradients(cell, data, "reference")
    assert_close(run_with_gradients(cell, data, "fused"), expected, 1e-10)
