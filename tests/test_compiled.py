"""What XLA makes of the gradient: read from the compiled program, so that no clock is needed."""

import math
import re

import jax
import numpy as np
import pytest
import table

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, MGU, RNN

STEPS, BATCH, INPUTS, WIDTH = 61, 7, 5, 13  # no two sizes, nor their products, are alike
CELLS = [RNN(WIDTH), LSTM(WIDTH), GRU(WIDTH)]
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = \w+\[([\d,]*)\]\S* ([\w\-]+)\((.*?)\)")
standard = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: type(cell).__name__)


def gradient(cell, implementation="fused", outputs=False):
    """Text of the compiled gradient of the parameters, and its computations."""

    def loss(params, x):
        y, final = recurrence.run(cell, params, x, implementation=implementation)
        return (y**2).sum() if outputs else (final.h**2).sum()

    x = np.zeros((BATCH, STEPS, INPUTS), np.float32)
    text = jax.jit(jax.grad(loss)).lower(cell.shapes(INPUTS), x).compile().as_text()
    return text, computations_of(text)


def computations_of(text):
    """By name, as lines."""
    computations: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith("{"):
            lines = computations.setdefault(line.removeprefix("ENTRY ").split()[0], [])
        elif line.startswith(" "):
            lines.append(line)
    return computations


def loops(cell, **options):
    text, computations = gradient(cell, **options)
    names = re.findall(r" while\(.*body=(%[\w.\-]+)", text)
    assert len(names) == 2, "one forward, one backward"
    return [computations[name] for name in names]


def changed(body, shapes):
    """Elements of a loop's state that have one of these shapes and leave otherwise than they
    came."""
    root = next(line for line in body if "ROOT" in line)
    state, operands = root.split(" tuple(")[0], root.split(" tuple(")[1].split(")")[0]
    found = []
    for place, (dims, name) in enumerate(
        zip(re.findall(r"\[([\d,]*)\]", state), re.findall(r"%[\w.\-]+", operands), strict=True)
    ):
        passed = any(f"{name} = " in line and f"index={place}" in line for line in body)
        if tuple(map(int, filter(None, dims.split(",")))) in shapes and not passed:
            found.append(name)
    return found


def kernels(cell):
    leaves = (leaf.shape for leaf in jax.tree.leaves(cell.shapes(INPUTS)) if leaf.ndim == 2)
    return {shape for rows, columns in leaves for shape in ((rows, columns), (columns, rows))}


def moved(cell, **options):
    """Shapes of copies and transposes of arrays [T, B, ...], whichever way their axes lie; zeros
    that a loop overwrites are left out."""
    found = []
    for name, lines in gradient(cell, **options)[1].items():
        if "fused" in name or "wrapped" in name:  # inside an instruction that is seen itself
            continue
        for line in lines:
            match = INSTRUCTION.match(line)
            if match is None or "broadcast" in match[4]:
                continue
            shape = tuple(map(int, filter(None, match[2].split(","))))
            if math.prod(shape) % (STEPS * BATCH) or not shape:
                continue
            if "copy" in match[1] + match[3] or "transpose" in match[1] + match[3]:
                found.append(shape)
    return found


@standard
@pytest.mark.parametrize("outputs", [False, True])
def test_no_weight_gradient_is_added_up_in_a_loop(cell, outputs):
    for body in loops(cell, outputs=outputs):
        assert not changed(body, kernels(cell))
    plain = [changed(body, kernels(cell)) for body in loops(cell, implementation="reference")]
    assert any(plain), "the check sees nothing"


@standard
@pytest.mark.parametrize("outputs", [False, True])
def test_nothing_of_all_steps_is_moved_but_what_must_be(cell, outputs):
    """x becomes time first, once for the loop and once, with its axes turned, for the gradient of
    its kernel; h is turned for its own. Nothing of the width of all gates is."""
    must = {(STEPS, BATCH, INPUTS), (INPUTS, STEPS * BATCH), (WIDTH, STEPS * BATCH)}
    found = moved(cell, outputs=outputs)
    assert len(found) <= len(must) and {*found} <= must, found


@standard
def test_gradients_of_gradients_add_nothing_of_all_steps_in_a_loop(cell):
    """Their cost grows with T, not with its square."""

    def hvp(params, x, direction):
        def loss(params):
            return (recurrence.run(cell, params, x)[1].h ** 2).sum()

        forward = jax.jvp(jax.grad(loss), (params,), (direction,))[1]

        def slope(params):
            return sum(map(np.sum, jax.tree.leaves(jax.grad(loss)(params))))

        return forward, jax.grad(slope)(params)

    x, params = np.zeros((BATCH, STEPS, INPUTS), np.float32), cell.shapes(INPUTS)
    made = set(made_in_loops(jax.make_jaxpr(hvp)(params, x, params).jaxpr))
    assert not made - {"dynamic_update_slice"}, made


def made_in_loops(jaxpr, inside=False):
    """What makes arrays [T, ...] in the bodies of loops, by name."""
    for eqn in jaxpr.eqns:
        parts = [leaf for value in eqn.params.values() for leaf in jax.tree.leaves(value)]
        bodies = [getattr(part, "jaxpr", part) for part in parts]
        bodies = [body for body in bodies if hasattr(body, "eqns")]
        for body in bodies:
            yield from made_in_loops(body, inside or eqn.primitive.name == "scan")
        if inside and not bodies and any(STEPS in var.aval.shape[:1] for var in eqn.outvars):
            yield eqn.primitive.name


@pytest.mark.parametrize("flags", [False, True])
@table.cells()
def test_no_loop_copies_all_steps_at_each(cell, flags):
    """Without mask and resets, and with them."""
    assert not copied_in_loops(cell, flags)


def test_a_copy_of_all_steps_would_be_seen():
    """Reset before the product: XLA cannot order the reads of z before what takes its place."""

    class Overwriting(MGU):
        overwritable = True
        update = MGU.update

    assert copied_in_loops(Overwriting(table.WIDTH, reset_after=True), flags=False)


def copied_in_loops(cell, flags):
    """Copies of arrays [T, B, ...] in the bodies of the gradient's loops."""

    def loss(params, x, flag):
        y, final = recurrence.run(cell, params, x, mask=flag, reset=flag)
        total = sum((leaf**2).sum() for leaf in jax.tree.leaves(final))
        return total + (y**2).sum() if flags else total

    x = np.zeros((BATCH, STEPS, table.INPUTS), np.float32)
    flag = np.ones((BATCH, STEPS), bool) if flags else None
    params = cell.shapes(table.INPUTS)
    text = jax.jit(jax.grad(loss)).lower(params, x, flag).compile().as_text()
    computations, found = computations_of(text), []
    for name in re.findall(r" while\(.*body=(%[\w.\-]+)", text):
        for line in computations[name]:
            match = INSTRUCTION.match(line)
            if match and match[3] == "copy" and match[2]:
                elements = math.prod(map(int, match[2].split(",")))
                found += [line] if elements % (STEPS * BATCH) == 0 else []
    return found
