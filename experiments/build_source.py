"""From a config to the source of its batches. Every field is used, or refused by its name."""

import dataclasses
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments.errors import UserError, at_least, blame, one_of
from experiments.memory import need_for_arrays
from experiments.sources import Drawn, Facts, Source, resident
from experiments.streams import Streamed, continued
from seqmodels.data import DATASETS
from seqmodels.data.prepare import SPLITS
from seqmodels.data.rows import Rows
from seqmodels.tasks import TASKS


def build_source(config: ConfigDict) -> Source:
    settings = dict(config.task)
    name = settings.pop("name", None)
    one_of("config.task.name", name, [*TASKS, *DATASETS])
    kind: Any = TASKS.get(name) or DATASETS[name]
    length = settings.pop("length", None) if name in TASKS else None
    allowed = [field.name for field in dataclasses.fields(kind)]
    for field in settings:
        if field not in allowed:
            raise UserError(f"config.task.{field} does not belong to {name} (its own: {allowed})")
    with blame("config.task"):
        task = kind(**settings)

    train, test = config.train, config.eval
    at_least("config.eval.batch", test.batch, 1)
    if name in DATASETS:
        if test.lengths:
            raise UserError(
                f"config.eval.lengths={tuple(test.lengths)}: {name} is a data set "
                "with rows of its own lengths; set it to ()"
            )
        return build_data(config, task)

    for field in ("chunk", "shuffle", "buckets", "workers", "prefetch"):
        if train[field] not in (None, ()):
            raise UserError(
                f"config.train.{field}={train[field]} is for data sets, and {name} draws fresh "
                "rows; set it to " + ("()" if field == "buckets" else "None")
            )
    if length is None:
        raise UserError(f"config.task.length is missing; {name} needs one")
    at_least("config.task.length", length, 1)
    for tested in test.lengths or ():
        if isinstance(tested, int):
            at_least("config.eval.lengths", tested, 1)
    for field in ("valid_examples", "test_examples"):
        at_least(f"config.eval.{field}", test.get(field), 1)
        if test[field] % test.batch:
            raise UserError(
                f"config.eval.{field}={test[field]} must be a multiple of "
                f"config.eval.batch={test.batch}"
            )
    if not test.lengths or not all(isinstance(n, int) for n in test.lengths):
        raise UserError(
            f"config.eval.lengths={tuple(test.lengths)} must be lengths to test, like (200,)"
        )
    if len(set(test.lengths)) < len(test.lengths):
        raise UserError(f"config.eval.lengths={tuple(test.lengths)} names a length twice")
    with blame("config.task.length"):
        task.steps(length)
    source = Drawn(
        task=task,
        length=length,
        batch=train.batch,
        eval_batch=test.batch,
        examples={
            "valid": test.valid_examples,
            "confirm": test.test_examples,
            "test": test.test_examples,
        },
        lengths=tuple(test.lengths),
    )
    for tested in source.lengths:
        with blame("config.eval.lengths"):
            task_then, _ = source.parts("test", tested)[0].shape
            task_then.steps(tested)
        batch = jax.eval_shape(source.eval_draw((task_then, tested)), jax.random.key(0), None, None)
        need_for_arrays(batch, f"a batch of config.eval.batch={test.batch}")
    return source


def build_data(config: ConfigDict, dataset: Any) -> Source:
    """Rows shuffled in buckets, or with config.train.chunk one stream in chunks."""
    train, name = config.train, config.task.name
    shared: dict[str, Any] = {"batch": train.batch, "eval_batch": config.eval.batch}
    shared |= {"accumulate": train.accumulate}
    if train.chunk is None:
        if any(not isinstance(n, int) or n < 1 for n in train.buckets):
            raise UserError(
                f"config.train.buckets={tuple(train.buckets)} must be widths, like (64, 256)"
            )
    else:
        at_least("config.train.chunk", train.chunk, 1)
        if train.shuffle is not None:
            raise UserError(
                f"config.train.shuffle={train.shuffle}: with config.train.chunk={train.chunk} each "
                "batch goes on where the one before stopped; set one of them to None"
            )
        if getattr(dataset, "window", None) is not None:
            raise UserError(
                f"config.task.window={dataset.window}: with config.train.chunk={train.chunk} files "
                "are read as a whole, one behind the other; set it to None"
            )
        if train.buckets:
            raise UserError(
                f"config.train.buckets={tuple(train.buckets)}: chunks are all of "
                f"config.train.chunk={train.chunk} steps; set it to ()"
            )
    if hasattr(dataset, "chunk"):
        return build_streamed(config, dataset, shared)
    for field in ("workers", "prefetch"):
        if train[field] is not None:
            raise UserError(
                f"config.train.{field}={train[field]} does nothing for {name}, whose rows stay on "
                "the devices; set it to None"
            )
    with blame("config.task"):
        splits = {split: dataset.load(split) for split in SPLITS}
        spec, facts = dataset.spec, of_rows(dataset, splits)
    if train.chunk is None:
        with blame("config.train.buckets"):
            return resident(
                spec,
                splits,
                facts,
                widths=tuple(train.buckets),
                shuffle=train.shuffle is not False,
                **shared,
            )
    if not spec.per_step:
        raise UserError(
            f"config.train.chunk={train.chunk}: {name} asks for one answer a row, which chunks "
            "would cut apart; set it to None"
        )
    return continued(spec, splits, facts, steps=train.chunk, **shared)


def of_rows(dataset: Any, splits: dict[str, Rows]) -> Facts:
    """What a data set tells of its loaded rows, which are not read again."""
    train, text = splits["train"], hasattr(dataset, "tokenizer") and dataset.spec.tokens
    return Facts(
        chance={split: dataset.chance(train, rows) for split, rows in splits.items()},
        baselines=dataset.baselines(train, splits["test"])
        if hasattr(dataset, "baselines")
        else None,
        tokenizer=dataset.tokenizer() if text else None,
        frequencies=dataset.frequencies(train) if hasattr(dataset, "frequencies") else None,
    )


def build_streamed(config: ConfigDict, dataset: Any, shared: dict[str, Any]) -> Source:
    """A data set too large for memory, whose chunks are read ahead."""
    train = config.train
    if train.chunk is None:
        raise UserError(
            f"config.train.chunk is None; {config.task.name} is one long stream and needs the "
            "steps of a chunk"
        )
    workers = 0 if train.workers is None else train.workers
    prefetch = 4 if train.prefetch is None else train.prefetch
    at_least("config.train.workers", workers, 0)
    at_least("config.train.prefetch", prefetch, 1)
    with blame("config.task"):
        return Streamed(
            dataset.spec,
            dataset,
            Facts(dataset.chance(), tokenizer=dataset.tokenizer()),
            steps=train.chunk,
            workers=workers,
            prefetch=prefetch,
            **shared,
        )
