"""Streams: chunks that are read ahead of the step are those that are cut from memory, bit for bit,
whoever reads them and wherever a run goes on."""

import contextlib
import multiprocessing
import threading
import time
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from test_experiments import rows_of, tiny, without_clocks
from test_resume import assert_same_end, interrupted_after

from configs.base import set_task
from experiments import loop, runs, streams
from experiments.build import build
from experiments.errors import UserError
from experiments.runs import run_one
from experiments.signals import Interrupted
from seqmodels.data import DATASETS
from seqmodels.data.rows import Rows
from seqmodels.data.text_files import TextFiles
from seqmodels.data.tokenizers import target_counts, unigram_bits

pytestmark = pytest.mark.usefixtures("standard_promotion")
TEXT = "".join(f"def f{n}(x):\n    return 'text {n}' * x  # {n % 7}\n\n" for n in range(18))
END = "\n\n"


@dataclass(frozen=True)
class InMemory:
    """`TextFiles` of one file as a data set of rows, a document each."""

    path: str
    separator: str | None = None

    spec = TextFiles.spec

    def load(self, split):
        begin, size = 0, self._files.size(split)
        for before in ("train", "valid", "test"):
            if before == split:
                break
            begin += self._files.size(before)
        text = TEXT.encode()
        starts = [
            at
            for at in range(size)
            if at == 0 or text[: begin + at].endswith(self.separator.encode())
        ]
        return Rows(
            np.frombuffer(text[begin : begin + size], np.uint8) + np.int32(3),
            None,
            np.array(starts, np.int32),
            np.diff([*starts, size]).astype(np.int32),
        )

    def chance(self, train, scored):
        return unigram_bits(*(target_counts(rows, self.spec.outputs) for rows in (train, scored)))

    def tokenizer(self):
        return self._files.tokenizer()

    @property
    def _files(self):
        return TextFiles(self.path, self.separator)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """754 bytes, of which 678 are trained on: 7 chunks of 4 x 25 in an epoch."""
    file = tmp_path_factory.mktemp("text") / "small.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    monkeypatch.setitem(DATASETS, "in_memory", InMemory)


def letters(path, name="text_files", **train):
    """A language model of bytes, trained for longer than an epoch.

    One program for all tests, here and of the commands: compiling is what takes the time.
    """
    config = tiny("gru", steps=10, eval_every=5, steps_per_call=2, batch=4)
    set_task(config, name, path=str(path), separator=END)
    config.model.update({"readout": None, "features": 16, "embedding": 8, "head_dropout": 0.1})
    config.checkpoint.seconds = 0.0
    config.eval.batch = 2
    config.train.update({"chunk": 25, "accumulate": 2, "average": 0.5} | train)
    return config


def source(path, name="text_files", **train):
    return build(letters(path, name, **train)).source


def assert_same(got, expected):
    for field, one, other in zip(expected._fields, got, expected, strict=True):
        assert one.dtype == other.dtype, field
        np.testing.assert_array_equal(one, other, err_msg=field)


def assert_same_chunks(streamed, path, accumulate, *spans):
    """What a source gives for steps start..stop-1 is what is cut from memory for them."""
    known = source(path, "in_memory", accumulate=accumulate)
    assert streamed.per_epoch == known.per_epoch == -(-7 // accumulate)
    cut = jax.jit(known.draw(None))
    for start, stop in spans:
        found, numbers = streamed.ids(0, start, stop), known.ids(0, start, stop)
        assert streamed.ids(1, start, stop) is found, "read once for all seeds"
        assert numbers.shape == found.inputs.shape[:2] == (stop - start, accumulate)
        for place in np.ndindex(numbers.shape):
            batch = jax.tree.map(lambda leaf, place=place: leaf[place], found)
            assert_same(batch, cut(None, numbers[place], known.data))


SPANS = [(0, 1), (0, 3), (3, 4), (4, 18)]  # in the order of a run, over borders of epochs


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_streamed_chunks_are_those_cut_from_memory(accumulate, path):
    assert_same_chunks(source(path, accumulate=accumulate), path, accumulate, *SPANS)


def test_J06_any_number_of_workers_goes_on_exactly(path):
    for workers, spans in ((0, [(5, 9), (9, 10)]), (1, [(3, 6), (6, 7)])):
        assert_same_chunks(source(path, workers=workers), path, 2, *spans)


@pytest.mark.slow
def test_J06_more_workers_go_on_exactly(path):
    for workers, prefetch in ((2, 1), (3, 4)):
        assert_same_chunks(
            source(path, workers=workers, prefetch=prefetch), path, 2, *SPANS, (7, 9)
        )


def test_building_starts_no_worker(path):
    """Nor does evaluation or generation, which ask for the shape of a batch alone."""
    assert build(letters(path, workers=1)).params > 0
    assert not multiprocessing.active_children()


def test_J08_what_was_read_ahead_is_read_again(path, monkeypatch):
    """Four batches ahead; stopped after three; the run that goes on has the fourth first."""
    asked = []
    chunk = TextFiles.chunk

    def noted(self, split, index, *sizes):
        asked.append(index)
        return chunk(self, split, index, *sizes)

    monkeypatch.setattr(TextFiles, "chunk", noted)
    stopped = source(path, accumulate=1, prefetch=4)
    asked.clear()
    stopped.ids(0, 0, 3)
    deadline = time.monotonic() + 60
    while len(asked) < 7:  # the thread reads on by itself
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert asked[:7] == [*range(7)]
    stopped.close()
    again = source(path, accumulate=1, prefetch=4)
    asked.clear()
    assert_same_chunks(again, path, 1, (3, 6))
    assert asked[:3] == [3, 4, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_source_reads_no_more_ahead_and_can_be_asked_again(workers, path):
    before = {*threading.enumerate()}
    streamed = source(path, workers=workers, prefetch=2)
    streamed.close()  # that has not begun
    for start in (0, 2):
        assert_same_chunks(streamed, path, 2, (start, start + 2))
        assert multiprocessing.active_children() or workers == 0
        streamed.close()
        assert not multiprocessing.active_children()
        deadline = time.monotonic() + 60
        # Beside processes grain has a pool of threads of its own, which ends when it is collected.
        while workers == 0 and (left := {*threading.enumerate()} - before):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_evaluation_has_every_chunk_once_in_parts_of_one_shape(split, path, monkeypatch):
    monkeypatch.setattr(streams, "EVAL_CHUNKS", 3)
    streamed, known = source(path), source(path, "in_memory")
    (whole,) = known.parts(split)
    cut = jax.jit(known.eval_draw(None))
    parts = [*streamed.parts(split)]
    assert len(parts) == -(-whole.batches // 3) and sum(p.batches for p in parts) == whole.batches
    for n in range(3 * len(parts)):
        batch = jax.tree.map(lambda leaf, n=n: leaf[n % 3], parts[n // 3].ids)
        assert streamed.eval_draw(None)(None, batch, None) is batch
        if n < whole.batches:
            assert_same(batch, cut(None, whole.ids[n], known.data))
        else:
            assert not batch.mask.any() and not batch.weights.any()


@pytest.fixture(scope="module")
def whole(path, tmp_path_factory):
    """A run without an interruption."""
    place = tmp_path_factory.mktemp("whole") / "run"
    with jax.numpy_dtype_promotion("standard"):
        run_one(letters(path), place)
    return place


def test_a_run_that_streams_has_the_numbers_of_one_in_memory(path, whole, tmp_path):
    run_one(letters(path, "in_memory"), tmp_path / "run")
    assert numbers_of(tmp_path / "run") == numbers_of(whole)
    assert {row["step"] for row in rows_of(whole, "train")} == {5, 10}


def numbers_of(workdir):
    """Rows without what names a run; the order is told by chunks here, by their numbers there."""
    names = ("config", "task", "order")
    return [{k: v for k, v in row.items() if k not in names} for row in without_clocks(workdir)]


def with_workers(number, monkeypatch):
    """From now on, so many read for a run, whatever its config said when it began."""

    def built(config):
        run = build(config)
        run.source.workers = number
        return run

    monkeypatch.setattr(runs, "build", built)


def end_with_interruptions(config, workdir, calls, workers):
    """Interrupted after so many calls, each time with other workers."""
    for count, number in zip(calls, workers, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            interrupted_after(count, patch)
            with_workers(number, patch)
            with contextlib.suppress(Interrupted):
                run_one(config, workdir)


@pytest.mark.slow
def test_I09_stream_that_is_interrupted_ends_as_one_that_is_not(path, whole, tmp_path):
    end_with_interruptions(letters(path), tmp_path / "run", (0, 1, 1, 100), (0, 0, 0, 0))
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.slow
def test_J06_a_run_goes_on_with_another_number_of_workers(path, whole, tmp_path):
    end_with_interruptions(letters(path), tmp_path / "run", (1, 1, 0, 100), (2, 1, 3, 0))
    assert_same_end(tmp_path / "run", whole)


# Files that cannot be read.


@pytest.mark.parametrize(
    "text, settings, words",
    {
        "absent": (None, {}, ["no file at", "a file, a directory, a glob pattern"]),
        "too small": ("abc", {}, ["has 3 bytes", "40 or more"]),
        "empty": ("", {}, ["has 0 bytes", "40 or more"]),
        "not text": ("a" * 50 + "\ufffe", {"encoding": "utf-8"}, ["is not utf-8 at byte 50"]),
        "no separator": (TEXT, {"separator": ""}, ["separator is ''"]),
        "other encoding": (TEXT, {"encoding": "latin-1"}, ["encoding is 'latin-1'", "'utf-8'"]),
    }.values(),
)
@pytest.mark.parametrize("workers", [None, 1])
def test_bad_file_is_one_line_and_writes_nothing(text, settings, words, workers, tmp_path):
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_bytes(text.encode("utf-8").replace("\ufffe".encode(), b"\xfe\xff"))
    config = letters(file, workers=workers)
    with config.unlocked():
        config.task.update(settings)
    with pytest.raises(UserError) as caught:
        run_one(config, tmp_path / "run")
    message = str(caught.value)
    assert message.startswith("config.task: ") and "\n" not in message
    for word in words:
        assert word in message
    assert not (tmp_path / "run").exists()


def spoil(file, calls, monkeypatch):
    """The file grows while call number `calls` is under way."""
    feed, count = loop.feed, 0

    def grown(*args):
        nonlocal count
        count += 1
        if count == calls:
            file.write_text(TEXT + "more")
        return feed(*args)

    monkeypatch.setattr(loop, "feed", grown)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_file_that_changes_under_way_ends_the_run_with_one_line(
    workers, whole, tmp_path, monkeypatch
):
    """What was saved stays: with the file put back, the same command ends as if never stopped."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    config = letters(file, workers=workers)
    with monkeypatch.context() as patch:
        spoil(file, 4, patch)
        with pytest.raises(UserError) as caught:
            run_one(config, tmp_path / "run")
    assert str(caught.value) == f"config.task: {file} has 758 bytes, and had 754 when first read"
    assert [row["step"] for row in rows_of(tmp_path / "run", "valid")] == [5, 5]

    file.write_text(TEXT)
    run_one(config, tmp_path / "run")
    assert numbers_of(tmp_path / "run") == numbers_of(whole)
