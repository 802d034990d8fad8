"""What a run costs: size of the program, recompilation, memory, donation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from table import BATCH, INPUTS, STEPS, data_of, jit

from seqmodels import recurrence
from seqmodels.cells import LRU, LSTM, RNN


def gradient(cell, implementation="fused", remat=None, outputs=True):
    def loss(params, x, lengths):
        y, final = recurrence.run(
            cell, params, x, lengths=lengths, implementation=implementation, remat=remat
        )
        total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(final))
        return total + jnp.sum(y) if outputs else total

    return jax.grad(loss, argnums=(0, 1) if outputs else 0)


def shapes(cell, steps, batch=BATCH, inputs=INPUTS):
    params = jax.eval_shape(lambda key: cell.init(key, inputs), jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, steps, inputs), np.float32)
    return params, x, jax.ShapeDtypeStruct((batch,), np.int32)


@table.cells(costly=True)
def test_N01_the_program_does_not_grow_with_time(cell):
    traced = [jax.jit(gradient(cell)).trace(*shapes(cell, steps)) for steps in (16, 1024)]
    for text in ([str(t.jaxpr) for t in traced], [t.lower().as_text() for t in traced]):
        short, long = (program.count(" = ") for program in text)
        assert short == long > 50


def test_N04_other_lengths_never_recompile():
    traces = 0

    class Counted(LSTM):
        def project(self, params, x):
            nonlocal traces
            traces += 1
            return super().project(params, x)

    cell = Counted(3)
    data = data_of(cell, np.float32)
    step = jit(gradient(cell))
    rng = np.random.default_rng(0)
    step(data.params, data.x, np.full(BATCH, STEPS, np.int32))
    first = traces
    assert first > 0
    for _ in range(20):
        step(data.params, data.x, rng.integers(0, STEPS + 1, BATCH).astype(np.int32))
    assert traces == first and step._cache_size() == 1
    step(data.params, data.x[:, :3], np.full(BATCH, 3, np.int32))
    assert traces > first, "the counter does not count"


@table.cells(costly=True)
def test_N05_the_initial_carry_can_be_donated(cell):
    """Each leaf is overwritten in place, so that no two may share a buffer."""
    params = jax.tree.map(jnp.asarray, data_of(cell, np.float32).params)
    x = jnp.ones((BATCH, STEPS, INPUTS))

    def step(params, carry):
        def loss(params):
            y, final = recurrence.run(cell, params, x, carry, implementation="fused")
            return jnp.sum(y**2), jax.lax.stop_gradient(final)

        gradients, final = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), final

    donating = jit(step, donate_argnums=(0, 1))
    carry = cell.initial_carry(params, BATCH)
    given = params, carry
    for _ in range(2):
        params, carry = donating(params, carry)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((params, carry)))


@table.cells(costly=True)
def test_N06_the_final_carry_alone_stores_no_history(cell):
    check_no_history(cell, "fused")


@table.cells(costly=True)
def test_N06_nor_does_the_reference(cell):
    check_no_history(cell, "reference")


def check_no_history(cell, implementation):
    """Temporary memory may hold x once more, time first, but no [T, B, H]."""

    def final(params, x, lengths):
        _, carry = recurrence.run(cell, params, x, lengths=lengths, implementation=implementation)
        return carry

    def temporary(steps):
        arguments = shapes(cell, steps, batch=16, inputs=4)
        memory = jax.jit(final).lower(*arguments).compile().memory_analysis()
        return memory.temp_size_in_bytes

    short, long = 256, 4096
    one_step = 16 * (4 * 4 + 1)  # x in float32 and a mask in bytes
    assert temporary(long) - temporary(short) <= 1.1 * one_step * (long - short)
    history = 16 * 4 * cell.features * (long - short)
    assert history > 1.5 * one_step * (long - short), "too narrow to tell"


@pytest.mark.parametrize("implementation", table.IMPLEMENTATIONS)
def test_N03_remat_stores_less(implementation):
    """The carry at the borders of chunks and one chunk's steps, instead of all T steps. The size
    divides T or not; in no case is there another x.

    Of the parameters, from the final carry: outputs and inputs have gradients of T steps anyway.
    """
    cell = RNN(32)
    arguments = shapes(cell, 8192)

    def temporary(remat):
        compiled = (
            jax.jit(gradient(cell, implementation, remat, outputs=False))
            .lower(*arguments)
            .compile()
        )
        return compiled.memory_analysis().temp_size_in_bytes

    most = 0.04 * temporary(remat=None)
    assert max(temporary(remat=64), temporary(remat=90)) < most


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    "cell, implementation",
    [(LSTM(8), "fused"), (LSTM(8), "reference"), (LRU(8), "fused"), (LRU(8), "associative")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_programs_are_made_for_accelerators(cell, implementation, platform):
    """No device is needed to lower one for it; without a CPU's own calls inside."""
    traced = jax.jit(gradient(cell, implementation)).trace(*shapes(cell, 16))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.dot_general" in text
    assert ("stablehlo.while" in text) == (implementation != "associative")
    assert "custom_call" not in text
