"""From a config to objects. With `build_model` and `build_source` the only reader of config fields;
nothing below sees a ConfigDict.

Every field is used, or refused with a UserError that names it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from experiments.build_model import build_model
from experiments.build_source import build_source
from experiments.errors import UserError, at_least, blame, finite, one_of
from experiments.memory import need, need_for_arrays
from experiments.sources import Source, example, zeros
from seqmodels import optim
from seqmodels.cells import CELLS
from seqmodels.losses import LOSSES
from seqmodels.metrics import METRICS
from seqmodels.training.selection import Selection
from seqmodels.training.state import init_state
from seqmodels.training.step import Learner

FIELDS = {  # of each group but task and cell, which know their own
    "": "label task model cell optimizer train checkpoint eval",
    "model": "cell activation features layers bidirectional merge input_dropout layer_dropout "
    "head_dropout readout head_start embedding tied init input_stddev gate_bias chrono_length "
    "dtype",
    "optimizer": "name learning_rate schedule warmup clip weight_decay momentum b1 b2",
    "train": "seeds seed steps batch weight_noise max_bad_steps shards accumulate shuffle buckets "
    "chunk workers prefetch average eval_every steps_per_call solved stop_when_solved test "
    "patience drops drop_factor",
    "checkpoint": "seconds keep",
    "eval": "batch valid_examples test_examples lengths",
}
ROWS_A_SHARE = 8  # of a batch over several devices, at least
OF_TASKS = ("config.eval.valid_examples", "config.eval.test_examples")
"""What data sets have no need of."""


class Run(NamedTuple):
    """One config as objects: what the loop works with."""

    label: str
    task: str
    metric: str
    source: Source
    learner: Learner
    tokenizer: Any  # of language models and other text; None elsewhere
    baselines: dict[str, float] | None  # scores that need no training, besides chance
    params: int  # how many numbers the model learns
    seeds: tuple[int, ...]
    shards: int
    steps: int
    eval_every: int
    steps_per_call: int
    rates: Callable[[int], Any]  # learning rate of update n
    solved: float | None
    stop_when_solved: bool
    test_best: bool
    save_seconds: float
    keep: int

    def solves(self, score: float) -> bool:
        """Whether a score is past the threshold that counts as solved; never where none is set."""
        if self.solved is None:
            return False
        higher = METRICS[self.metric].higher_is_better
        return score > self.solved if higher else score < self.solved


def build(config: ConfigDict) -> Run:
    """Raises UserError for a value that cannot be, a name that does not exist, or a setting that
    nothing would read; before any file is written."""
    check_fields(config)
    train = config.train
    for field in ("seeds", "steps", "batch", "eval_every", "max_bad_steps", "accumulate"):
        at_least(f"config.train.{field}", train[field], 1)
    at_least("config.train.seed", train.seed, 0)
    if train.seed + train.seeds > 2**32:
        raise UserError(
            f"config.train.seed={train.seed}: seeds from 2^32 on repeat those below; choose less"
        )
    for field in ("weight_noise", "solved"):
        finite(f"config.train.{field}", train[field])
    at_least("config.train.steps_per_call", train.steps_per_call, 1)
    if train.shards is not None:
        at_least("config.train.shards", train.shards, 1)
    at_least("config.checkpoint.keep", config.checkpoint.keep, 1)
    at_least("config.checkpoint.seconds", config.checkpoint.seconds, 0.0)
    at_least("config.train.weight_noise", train.weight_noise, 0.0)
    if train.stop_when_solved and train.solved is None:
        raise UserError("config.train.stop_when_solved=True needs a score in config.train.solved")
    if not config.label.strip():
        raise UserError("config.label is empty; it names the run in tables and figures")

    one_of("config.model.cell", config.model.cell, CELLS)
    if config.label in CELLS and config.label != config.model.cell:
        raise UserError(
            f"config.label={config.label!r} names another cell than config.model.cell="
            f"{config.model.cell!r}; change one of them"
        )
    source = build_source(config)
    batch = example(source)
    need_for_arrays(batch, f"a batch of config.train.batch={train.batch}")
    if train.stop_when_solved and not source.confirms:
        raise UserError(
            f"config.train.stop_when_solved=True: {config.task.name} is a data set, "
            "and no fresh rows can be drawn to confirm it; set it to False"
        )
    if source.carried and config.model.bidirectional:
        raise UserError(
            f"config.model.bidirectional=True: with config.train.chunk={train.chunk} the layer "
            "that walks backwards would need chunks that are not there yet; set one of them off"
        )
    optimizer, rates = build_optimizer(config.optimizer, train.steps)
    learner = Learner(
        model=build_model(config.model, config.cell, source.spec, source.facts.frequencies),
        optimizer=optimizer,
        loss=LOSSES[source.spec.loss],
        metric=METRICS[source.spec.metric].function,
        weight_noise=train.weight_noise,
        max_bad_steps=train.max_bad_steps,
        accumulate=train.accumulate,
        clip=config.optimizer.clip,
        average=train.average,
        selection=build_selection(train, METRICS[source.spec.metric].higher_is_better),
    )
    state = jax.eval_shape(lambda: init_state(learner, jax.random.key(0), *zeros(batch)))
    params = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    need_for_arrays(state, "the state of training", train.seeds)
    need(4 * math.prod(batch.mask.shape) * config.model.features, "what a layer puts out")
    return Run(
        label=config.label,
        task=config.task.get("set", config.task.name),
        metric=source.spec.metric,
        source=source,
        learner=learner,
        tokenizer=source.facts.tokenizer,
        baselines=source.facts.baselines,
        params=params,
        seeds=tuple(range(train.seed, train.seed + train.seeds)),
        shards=train.shards or shares(train),
        steps=train.steps,
        eval_every=train.eval_every,
        steps_per_call=train.steps_per_call,
        rates=rates,
        solved=train.solved,
        stop_when_solved=train.stop_when_solved,
        test_best=train.test == "best",
        save_seconds=config.checkpoint.seconds,
        keep=config.checkpoint.keep,
    )


def shares(train: ConfigDict) -> int:
    """How many devices share each batch by default: all that the seeds leave over, as long as each
    has rows enough to be worth the sum over devices at the end of a step.

    Of all seeds, not of those that are left: a run that goes on adds in the same order.
    """
    return max(1, min(len(jax.local_devices()) // train.seeds, train.batch // ROWS_A_SHARE))


def check_fields(config: ConfigDict) -> None:
    """UserError for a field that is missing, or that nothing would read."""
    for group, known in FIELDS.items():
        there = config[group] if group else config
        for field in [*there, *known.split()]:
            where = f"config.{group}.{field}" if group else f"config.{field}"
            if field not in known.split():
                raise UserError(f"{where} is read by nothing; known: {', '.join(known.split())}")
            if field not in there and where not in OF_TASKS:
                raise UserError(f"{where} is missing; configs/base.py has every field")


def build_selection(train: ConfigDict, higher: bool) -> Selection | None:
    """What validation scores decide, None if nothing."""
    one_of("config.train.test", train.test, ("last", "best"))
    if not 0 <= train.average < 1:
        raise UserError(f"config.train.average={train.average} must be from 0 up to, not incl., 1")
    at_least("config.train.drops", train.drops, 0)
    if train.patience is None and train.drops:
        raise UserError(
            f"config.train.drops={train.drops} needs config.train.patience, which is None"
        )
    if (train.drops > 0) != (train.drop_factor is not None):
        raise UserError(
            f"config.train.drop_factor={train.drop_factor} and config.train.drops={train.drops} "
            "go together: a factor for each drop, None for none"
        )
    if train.patience is not None:
        at_least("config.train.patience", train.patience, 1)
    elif train.test == "last":
        return None
    if train.drop_factor is not None and not 0 < train.drop_factor < 1:
        raise UserError(f"config.train.drop_factor={train.drop_factor} must be between 0 and 1")
    return Selection(higher, train.patience, train.drops, train.drop_factor or 1.0)


def build_optimizer(settings: ConfigDict, steps: int) -> tuple[Any, Callable[[int], Any]]:
    """The optimizer and its learning rate of update n."""
    with blame("config.optimizer"):
        rates = optim.learning_rates(
            settings.learning_rate, schedule=settings.schedule, steps=steps, warmup=settings.warmup
        )
        return optim.make(steps=steps, **settings), rates
