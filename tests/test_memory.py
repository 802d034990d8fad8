"""What does not fit into memory is refused with one line, before anything is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_experiments import contents, tiny

from experiments import memory, runs
from experiments.build import build
from experiments.errors import UserError, enough_memory
from experiments.runs import run_one

HUGE = 2**31 - 1


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"model.features": 100_000_000}, "the state of training needs"),
        ({"model.layers": HUGE, "model.features": 100}, "one row of memory in each layer"),
        ({"train.seeds": HUGE}, "the state of training needs"),
        ({"train.batch": HUGE}, f"config.train.batch={HUGE} needs"),
        ({"train.batch": 10**7, "model.features": 1000}, "what a layer puts out needs"),
        ({"task.length": HUGE, "train.batch": 100}, "config.train.batch=100 needs"),
        ({"eval.lengths": (HUGE,), "eval.batch": 100, "eval.test_examples": 100}, "eval.batch=100"),
    ],
)
def test_sizes_that_no_machine_has_are_refused(fields, words, monkeypatch):
    """Before a tuple of so many seeds, or layers, is made."""
    monkeypatch.setattr(memory, "available", lambda: 8 * 2**30)
    config = tiny()
    config.eval.valid_examples = 100
    config.update_from_flattened_dict(fields)
    with pytest.raises(UserError) as caught:
        build(config)
    message = str(caught.value)
    assert words in message and "there are 8.0 GiB" in message and "\n" not in message
    assert "config.model.features" in message and "smaller" in message


def test_a_program_counts_arguments_results_and_scratch_on_every_device(monkeypatch):
    """x.T @ x of [256, 1024] floats: 1 MiB in, 4 MiB out; on two devices twice."""
    program = jax.jit(lambda x: jnp.tanh(x.T @ x)).lower(np.zeros((256, 1024), "f4")).compile()
    monkeypatch.setattr(memory, "available", lambda: 11 * 2**20)
    memory.need_for_program(program, "one call", 1)
    with pytest.raises(UserError, match=r"^one call needs 0.0 GiB of memory"):
        memory.need_for_program(program, "one call", 3)


def test_there_is_no_more_than_a_container_allows(tmp_path, monkeypatch):
    machine = memory.available()
    assert 2**28 < machine < 2**50
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMIT", limit)
    for text, expected in (("max\n", machine), ("1000\n", 1000)):
        limit.write_text(text)
        assert memory.available() == expected


@pytest.mark.parametrize(
    "error, said",
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 671. GiB for an array"), "671. GiB"),
        (OverflowError("Python int too large\nto convert"), "(Python int too large)"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
            "(Out of memory allocating 9 bytes)",
        ),
    ],
)
def test_an_allocation_that_fails_all_the_same_is_one_line(error, said):
    with pytest.raises(UserError) as caught, enough_memory():
        raise error
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_other_errors_of_devices_are_not_called_memory():
    with pytest.raises(jax.errors.JaxRuntimeError), enough_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")


def test_a_directory_in_which_nothing_began_goes_again(tmp_path, monkeypatch):
    """An old one, or one with a row, stays as it is."""

    def fail(run, seeds, results, *rest):
        if begun:
            results.write("valid", 0, step=1, score=1.0, chance=0.1)
        raise UserError("one call needs 99 GiB")

    monkeypatch.setattr(runs, "train_and_test", fail)
    begun = False
    with pytest.raises(UserError, match="99 GiB"):
        run_one(tiny(), tmp_path / "new")
    assert not [*tmp_path.iterdir()]

    begun = True
    with pytest.raises(UserError, match="99 GiB"):
        run_one(tiny(), tmp_path / "old")
    begun, rows = False, (tmp_path / "old" / "results.jsonl").read_text()
    assert rows
    with pytest.raises(UserError, match="99 GiB"):
        run_one(tiny(), tmp_path / "old")
    assert (tmp_path / "old" / "results.jsonl").read_text() == rows
    assert tmp_path / "old" / "config.json" in contents(tmp_path)
