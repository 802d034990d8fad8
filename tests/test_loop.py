"""What the loop writes down, from a state made by hand."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_experiments import tiny

from experiments import programs
from experiments.build import build
from experiments.errors import UserError
from experiments.loop import Notes, Session
from experiments.runs import run_one

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax mixes dtypes
SUMS = {"loss": 2.0, "metric": 1.0, "weight": 2.0, "grad_norm": 3.0, "clipped": 1.0, "steps": 2.0}
SEEN = {"batches": 2.0, "real": 8.0, "slots": 10.0, "lengths": [0.0, 0.0, 2.0], "h_norm": 1.0}


def written(applied, best=None, **sums):
    """The row of one seed at step 4 that applied so many updates."""
    config = tiny(steps=4, seeds=1)
    config.optimizer.update({"schedule": "linear", "learning_rate": 1.0})
    run, rows = build(config), []
    opt_state = run.learner.optimizer.init({"kernel": jnp.zeros((1, 1))})
    opt_state = (*opt_state[:-1], opt_state[-1]._replace(count=jnp.array([applied])))
    session = Session(
        run=run,
        seeds=(0,),
        every=None,
        mesh=None,
        programs=None,
        results=SimpleNamespace(write=lambda kind, seed, **row: rows.append(row)),
        show=None,
        state=SimpleNamespace(step=[3], opt_state=opt_state, best=best),
        notes=Notes(4, 0, 0.0, [SUMS | SEEN | sums], [0], [None], {}, trained=2.0, waited=0.5),
    )
    session.write_train()
    assert (session.notes.trained, session.notes.waited) == (0.0, 0.0)
    return rows


def test_the_rate_is_that_of_the_last_update_that_was_applied():
    """Of four updates one was skipped: the third rate of 1, 0.75, 0.5, 0.25."""
    for applied, rate in ((4, 0.25), (3, 0.5), (1, 1.0)):
        (row,) = written(applied)
        assert row["learning_rate"] == pytest.approx(rate)
    lowered = SimpleNamespace(rate=jnp.array([0.5]))
    assert written(3, lowered)[0]["learning_rate"] == pytest.approx(0.25)


def test_rows_are_averages_of_what_was_seen():
    (row,) = written(4, re_norm=3.0)
    assert (row["step"], row["re_norm"]) == (3, 1.5)  # the seed's own step; whatever its carry is
    assert (row["loss"], row["score"], row["grad_norm"], row["clipped"]) == (1.0, 0.5, 1.5, 0.5)
    assert (row["tokens_per_second"], row["waiting"]) == (4.0, 0.25)
    assert (row["padding"], row["h_norm"], row["lengths"]) == (pytest.approx(0.2), 0.5, {"4": 2})
    assert not written(4, steps=0.0), "a seed that took no step has no row"
    (empty,) = written(4, batches=0.0, real=0.0, slots=0.0, lengths=[0.0], h_norm=0.0)
    assert (empty["padding"], empty["h_norm"], empty["lengths"]) == (1.0, 0.0, {})


def test_notes_of_another_version_are_refused_by_name():
    notes = dataclasses.asdict(Notes.fresh(2, {}))
    assert Notes.read({**notes, "digest": "", "config": {}}, {}) == Notes.fresh(2, {})
    del notes["order"]
    with pytest.raises(UserError, match="its notes have no order"):
        Notes.read(notes, {})


def test_notes_of_other_data_are_refused():
    there, here = ({"chance": {"test": chance}, "per_epoch": 7} for chance in (0.5, 0.25))
    notes = dataclasses.asdict(Notes.fresh(2, there))
    with pytest.raises(UserError, match=r"data.chance.test is 0.5 there and 0.25 here"):
        Notes.read(notes, here)


def test_N04_one_program_for_each_bucket(tmp_path, monkeypatch):
    """All compiled before the first step; steps of many lengths compile none."""
    sizes = (8, 16, 32)
    for n, length in enumerate(np.random.default_rng(0).integers(1, 33, 80)):
        (tmp_path / f"m{n}.py").write_text("x" * length)
    config = tiny("gru", steps=30, eval_every=30, steps_per_call=4, batch=4)
    with config.unlocked():
        config.task = {"name": "python_tokens", "window": 32, "source_dir": str(tmp_path)}
        del config.eval.valid_examples, config.eval.test_examples
    config.eval.lengths = ()
    config.model.update({"readout": None, "embedding": 4})
    config.train.buckets = sizes
    compile_all, found, compiled = programs.compile_all, [], []

    def watched(*args):
        found.append((compile_all(*args), [*compiled]))
        return found[0][0]

    def listener(event, seconds, **details):
        if event.endswith("backend_compile_duration") and details["fun_name"] == "jit(mapped)":
            compiled.append(event)

    monkeypatch.setattr("experiments.loop.compile_all", watched)
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        run_one(config, tmp_path / "run")
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    ((ready, before),) = found
    assert {*ready.train} == {*sizes}
    assert len(compiled) == len(before) > len(sizes)
