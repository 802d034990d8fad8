"""K06: every field of a config changes what comes out, or is refused with a line that names it."""

import pytest
from test_experiments import rows_of, tiny

from experiments.errors import UserError
from experiments.results import CLOCKS
from experiments.runs import run_one

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("standard_promotion")]

# Another value for every leaf of the config of `tiny`, by path.
CHANGES = {
    "label": "other",
    "task.name": "copy",
    "task.length": 9,
    "task.min_length": 4,
    "model.cell": "gru",
    "model.activation": "relu",
    "model.features": 4,
    "model.layers": 2,
    "model.bidirectional": True,
    "model.merge": "sum",
    "model.layer_dropout": 0.5,
    "model.head_dropout": 0.5,
    "model.readout": "mean",
    "model.embedding": 3,
    "model.init": "uniform_by_width",
    "model.input_stddev": 0.5,
    "model.gate_bias": 1.0,
    "model.chrono_length": 8,
    "model.dtype": "bfloat16",
    "optimizer.name": "rmsprop",
    "optimizer.learning_rate": 0.5,
    "optimizer.schedule": "cosine",
    "optimizer.warmup": 3,
    "optimizer.clip": 1e-3,
    "optimizer.weight_decay": 0.1,
    "optimizer.momentum": 0.5,
    "optimizer.b1": 0.1,
    "optimizer.b2": 0.1,
    "train.seeds": 3,
    "train.seed": 7,
    "train.steps": 6,
    "train.batch": 3,
    "train.weight_noise": 0.5,
    "train.max_bad_steps": 2,
    "train.eval_every": 4,
    "train.solved": 1e6,
    "train.stop_when_solved": True,
    "eval.batch": 2,
    "eval.valid_examples": 8,
    "eval.test_examples": 12,
    "eval.lengths": (8, 12),
}
REFUSED = {
    "task.name",  # its other settings do not belong to the new task
    "model.merge",
    "model.layer_dropout",
    "model.embedding",
    "model.cell",
    "model.gate_bias",
    "model.chrono_length",
    "optimizer.weight_decay",
    "optimizer.momentum",
    "train.stop_when_solved",
}


def leaves(config, path=""):
    for name, value in config.items():
        if hasattr(value, "items"):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def outcome(config, workdir):
    """All rows but clocks and the config's hash."""
    run_one(config, workdir)
    rows = [row for kind in ("train", "valid", "test", "final") for row in rows_of(workdir, kind)]
    left_out = {*CLOCKS, "config"}
    return [{k: v for k, v in row.items() if k not in left_out} for row in rows]


def wild():
    """`tiny`, made to diverge at its first step: there max_bad_steps shows."""
    config = tiny()
    config.model.activation = "relu"
    config.optimizer.update({"name": "sgd", "learning_rate": 1e30, "clip": None})
    return config


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    import jax

    with jax.numpy_dtype_promotion("standard"):
        return {
            make: outcome(make(), tmp_path_factory.mktemp(make.__name__) / "run")
            for make in (tiny, wild)
        }


def test_K06_the_sweep_knows_every_field():
    assert sorted(leaves(tiny())) == sorted(CHANGES)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_K06_every_field_acts_or_is_refused(field, usual, tmp_path):
    make = wild if field == "train.max_bad_steps" else tiny
    config = make()
    config.update_from_flattened_dict({field: CHANGES[field]})
    if field == "model.bidirectional":
        config.model.merge = "concat"
    if field in REFUSED:
        with pytest.raises(UserError, match=r"config\.(task|model|optimizer|train)\b"):
            run_one(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    else:
        assert outcome(config, tmp_path / "run") != usual[make]
