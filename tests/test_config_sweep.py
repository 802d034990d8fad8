"""K06: every field of a config changes what comes out, or is refused with a line that names it."""

import contextlib
from typing import Any, NamedTuple

import jax
import pytest
from jax.stages import Lowered
from test_experiments import tiny
from test_resume import SOURCES

from configs.base import set_task
from experiments.errors import UserError
from experiments.results import CLOCKS, read_rows
from experiments.runs import run_one

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("standard_promotion")]

ACTS, REFUSED = "changes the rows", "is refused"
SAME = "changes no row, but which checkpoints stay"
ROUNDS = "changes no row by more than rounding"


class Change(NamedTuple):
    """Another value of a field, with what must change `along`, in a run that has `given` besides,
    and what comes of it."""

    value: Any
    ends: str = ACTS
    given: dict[str, Any] = {}
    along: dict[str, Any] = {}


WILD = {  # diverges at its first step: there max_bad_steps shows
    "label": "wild",
    "model.cell": "rnn",
    "model.activation": "relu",
    "model.gate_bias": None,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 1e30,
    "optimizer.clip": None,
}
# Scores go up and down.
RESTLESS = {"optimizer.learning_rate": 2.0, "train.eval_every": 1, "train.steps": 8}
LOWERED = {**RESTLESS, "train.patience": 1, "train.drops": 1, "train.drop_factor": 0.5}
OFTEN = {"checkpoint.seconds": 0.0, "train.eval_every": 1}
BOTH_WAYS = {"model.bidirectional": True, "model.merge": "concat"}

# Of every run; those of one kind of run follow.
CHANGES: dict[str, Change] = {
    "label": Change("other"),
    "task.name": Change("digits", REFUSED),  # its other settings do not belong to the new task
    "model.cell": Change("lstm", along={"label": "lstm"}),
    "model.activation": Change("relu", REFUSED),
    "model.features": Change(4),
    "model.layers": Change(2),
    "model.bidirectional": Change(True, along={"model.merge": "concat"}),
    "model.merge": Change("sum", REFUSED),
    "model.input_dropout": Change(0.5),
    "model.layer_dropout": Change(0.5, REFUSED),
    "model.head_dropout": Change(0.5),
    "model.readout": Change("mean"),
    "model.head_start": Change("frequencies", REFUSED),
    "model.embedding": Change(3),
    "model.tied": Change(True, REFUSED),
    "model.init": Change("uniform_by_width"),
    "model.input_stddev": Change(0.5),
    "model.gate_bias": Change(2.0),
    "model.chrono_length": Change(8, along={"model.gate_bias": None}),
    "model.dtype": Change("bfloat16"),
    "cell.bias": Change(False, along={"model.gate_bias": None}),
    "cell.heads": Change(3),
    "cell.layer_norm": Change(True),
    "cell.clip": Change(0.1),
    "cell.hidden_dropout": Change(0.5),
    "cell.candidate_dropout": Change(0.5),
    "cell.dropout_per_step": Change(True, given={"cell.hidden_dropout": 0.5}),
    "cell.learned_carry": Change(True),
    "cell.zoneout_h": Change(0.5),
    "cell.reset_after": Change(False),
    "cell.z_keeps": Change(False),
    "optimizer.name": Change("rmsprop"),
    "optimizer.learning_rate": Change(0.5),
    "optimizer.schedule": Change("cosine"),
    "optimizer.warmup": Change(3),
    "optimizer.clip": Change(1e-3),
    "optimizer.weight_decay": Change(0.1, REFUSED),
    "optimizer.momentum": Change(0.5, REFUSED),
    "optimizer.b1": Change(0.1),
    "optimizer.b2": Change(0.1),
    "train.seeds": Change(2),
    "train.seed": Change(7),
    "train.steps": Change(6),
    "train.batch": Change(3),
    "train.weight_noise": Change(0.5),
    "train.max_bad_steps": Change(2, given=WILD),
    "train.shards": Change(2, ROUNDS),
    "train.accumulate": Change(2),
    "train.shuffle": Change(False),
    "train.buckets": Change((8, 16)),
    "train.chunk": Change(5),
    "train.workers": Change(1, REFUSED),
    "train.prefetch": Change(2, REFUSED),
    "train.average": Change(0.9),
    "train.eval_every": Change(3),
    "train.steps_per_call": Change(1, ROUNDS),  # another program, which XLA may fuse otherwise
    "train.solved": Change(1e6),
    "train.stop_when_solved": Change(True, REFUSED),
    "train.test": Change("best", given=RESTLESS),
    "train.patience": Change(1, given=RESTLESS),
    "train.drops": Change(2, given=LOWERED),
    "train.drop_factor": Change(0.1, given=LOWERED),
    "checkpoint.seconds": Change(0.0, SAME, {"checkpoint.keep": 3, "train.eval_every": 1}),
    "checkpoint.keep": Change(3, SAME, OFTEN),
    "eval.batch": Change(2),
}
OF_TASK = {
    # What is refused where it does nothing acts where it does something.
    "model.merge": Change("sum", given=BOTH_WAYS),
    "model.layer_dropout": Change(0.5, given={"model.layers": 2}),
    "optimizer.weight_decay": Change(0.1, given={"optimizer.name": "adamw"}),
    "optimizer.momentum": Change(0.5, given={"optimizer.name": "sgd"}),
    "train.stop_when_solved": Change(True, given={"train.solved": 1e6}),
    "task.length": Change(9),
    "task.min_length": Change(4),
    "model.embedding": Change(3, REFUSED),
    "train.shuffle": Change(False, REFUSED),
    "train.buckets": Change((8, 16), REFUSED),
    "train.chunk": Change(5, REFUSED),
    "eval.valid_examples": Change(8),
    "eval.test_examples": Change(12),
    "eval.lengths": Change((8, 12)),
}
OF_ROWS = {
    "task.window": Change(8),
    "train.chunk": Change(5, along={"task.window": None}),  # whole files
    "task.source_dir": Change("other"),
    "model.readout": Change("mean", REFUSED),
    "train.stop_when_solved": Change(True, REFUSED, {"train.solved": 0.5}),
    "eval.batch": Change(2, ROUNDS),  # each row once, whatever the batch
    "eval.lengths": Change((8, 12), REFUSED),
}
OF_STREAM = OF_ROWS | {
    "task.window": Change(8, REFUSED),
    "train.chunk": Change(5),
    "model.bidirectional": Change(True, REFUSED, along={"model.merge": "concat"}),
    "train.shuffle": Change(True, REFUSED),
    "train.buckets": Change((8, 16), REFUSED),
    "eval.batch": Change(2),  # the carry starts anew in each of its rows
}
OF_LSTM = {
    "cell.zoneout_c": Change(0.5),
    "cell.coupled": Change(True),
    "cell.peepholes": Change(True),
    "cell.projection": Change(2),
    "cell.cell_clip": Change(0.1),
}
# What does nothing alone is refused there too.
ALONE = {
    "cell.dropout_per_step": True,
    "model.merge": "sum",
    "model.layer_dropout": 0.5,
    "optimizer.weight_decay": 0.1,
    "optimizer.momentum": 0.5,
    "train.stop_when_solved": True,
    "train.drops": 2,
    "train.drop_factor": 0.5,
}


def task(place):
    return tiny("gru", seeds=1)


def rows(place):
    config = tiny("gru", seeds=1, batch=4)
    set_task(config, "python_tokens", window=16, source_dir=str(place / "sources"))
    config.model.update({"readout": None, "embedding": 2})
    return config


def stream(place):
    config = rows(place)
    config.task.window, config.train.chunk = None, 8
    return config


def lstm(place):
    return tiny("lstm", seeds=1)


KINDS = {
    kind.__name__: (kind, changes)
    for kind, changes in (
        (task, CHANGES | OF_TASK),
        (rows, CHANGES | OF_ROWS),
        (stream, CHANGES | OF_STREAM),
        (lstm, OF_LSTM),  # only what the other kinds, of a GRU, do not have
    )
}


def leaves(config, path=""):
    for name, value in config.items():
        if hasattr(value, "items"):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def outcome(config, workdir):
    """All rows but clocks and the config's hash, and the steps of the checkpoints that stay."""
    run_one(config, workdir)
    rows, kinds = read_rows(workdir / "results.jsonl"), ("train", "valid", "test", "final")
    found = [row for kind in kinds for row in rows if row["kind"] == kind]
    left_out = {*CLOCKS, "config"}
    kept = sorted(int(path.name) for path in workdir.glob("checkpoints/*/[0-9]*"))
    return [{k: v for k, v in row.items() if k not in left_out} for row in found], kept


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two directories of sources."""
    root = tmp_path_factory.mktemp("sweep")
    for name, repeats in (("sources", 1), ("other", 2)):
        (root / name).mkdir()
        for path, text in SOURCES.items():
            (root / name / path).write_text(text * repeats)
    return root


@pytest.fixture(scope="module", autouse=True)
def hurried():
    """Programs run for milliseconds here, so they are compiled in a third of the usual time."""
    compile_as, options = Lowered.compile, {"xla_cpu_use_fusion_emitters": False}
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # an XLA without that option
        jax.jit(lambda x: x).lower(0).compile(options)
        Lowered.compile = lambda self, compiler_options=None: compile_as(self, options)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    Lowered.compile = compile_as


@pytest.fixture(scope="module")
def usual(place, tmp_path_factory):
    """The outcome of a kind of run with `given`, once."""
    known = {}

    def find(kind, given):
        key = kind, str(given)
        if key not in known:
            config = KINDS[kind][0](place)
            config.update_from_flattened_dict(given)
            known[key] = outcome(config, tmp_path_factory.mktemp("usual") / "run")
        return known[key]

    return find


def test_K06_the_sweep_knows_every_field(place):
    others = {*leaves(task(place))}
    for kind, changes in KINDS.values():
        known = {*leaves(kind(place))}
        assert known - others == {*changes} if kind is lstm else known == {*changes}


@pytest.mark.parametrize(
    "kind, field", [(kind, field) for kind, (_, changes) in KINDS.items() for field in changes]
)
def test_K06_every_field_acts_or_is_refused(kind, field, usual, place, tmp_path):
    make, changes = KINDS[kind]
    value, ends, given, along = changes[field]
    if field == "task.source_dir":
        value = str(place / value)
    config = make(place)
    config.update_from_flattened_dict(given | along | {field: value})
    if ends == REFUSED:
        assert_refused(config, field, value, tmp_path / "run")
        return
    found, kept = outcome(config, tmp_path / "run")
    expected, kept_then = usual(kind, given)
    if ends == ACTS:
        assert found != expected
    elif ends == SAME:
        assert found == expected and kept != kept_then
    else:
        assert kept == kept_then
        for row, other in zip(found, expected, strict=True):
            assert nearly(row, other)


@pytest.mark.parametrize("field", ALONE)
def test_K06_field_that_does_nothing_alone_is_refused(field, place, tmp_path):
    config = task(place)
    config.update_from_flattened_dict({field: ALONE[field]})
    assert_refused(config, field, ALONE[field], tmp_path / "run")


def nearly(row, other):
    """Whether numbers differ by rounding; not the order of rows, whose ids stand otherwise."""
    assert row.keys() == other.keys()
    for name, value in row.items():
        if name != "order":
            wanted = (
                pytest.approx(other[name], rel=1e-4) if isinstance(value, float) else other[name]
            )
            assert value == wanted, name
    return True


def assert_refused(config, field, value, workdir):
    group, _, leaf = field.rpartition(".")
    with pytest.raises(UserError) as caught:
        run_one(config, workdir)
    message = str(caught.value)
    assert f"config.{group}" in message and (leaf in message or str(value) in message), message
    assert "\n" not in message
    assert not workdir.exists()
