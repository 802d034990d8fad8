"""Batches read ahead: the same ones in the same order, however many read, and nothing left over."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from seqmodels.data.rows import chunks
from seqmodels.data.streamed import batches
from seqmodels.data.text_files import TextFiles

ROOT = Path(__file__).parents[1]
BATCH, STEPS = 4, 9


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    letters = np.random.default_rng(0).choice(np.frombuffer(b"ab \n", np.uint8), 1000)
    (root / "a.txt").write_bytes(letters[:300].tobytes())
    (root / "b.txt").write_bytes(letters[300:].tobytes())
    return TextFiles(root, "\n")


@pytest.fixture
def read(files):
    return functools.partial(files.chunk, "train", batch=BATCH, steps=STEPS)


@pytest.fixture
def count(files):
    return chunks(files.size("train"), BATCH, STEPS)


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert type(one) is type(other)
        for field, array in zip(one, other, strict=True):
            assert type(field) is np.ndarray and field.dtype == array.dtype
            np.testing.assert_array_equal(field, array)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_resumed_stream_goes_on_where_it_was(read, count, prefetch):
    everything = [read(index) for index in range(count)]
    assert_same(batches(read, 0, count, prefetch=prefetch), everything)
    for start in (1, count // 2, count - 1, count):
        with closing(batches(read, 0, count, prefetch=prefetch)) as stream:
            first = [next(stream) for _ in range(start)]  # more may have been read ahead
        assert_same([*first, *batches(read, start, count, prefetch=prefetch)], everything)


@pytest.mark.parametrize("workers, prefetch", [(1, 1), (3, 2)])
def test_workers_change_neither_batches_nor_order(read, count, workers, prefetch):
    expected = [read(index) for index in range(5, count)]
    assert len(expected) % 3
    assert_same(batches(read, 5, count, workers, prefetch), expected)


def test_without_a_stop_it_goes_on():
    def read(index):
        return index

    with closing(batches(read, 10**12)) as stream:
        assert [next(stream) for _ in range(5)] == list(range(10**12, 10**12 + 5))


def test_no_more_is_read_ahead_than_asked_for():
    asked = []

    def read(index):
        asked.append(index)
        return index

    with closing(batches(read, 3, 1000, prefetch=2)) as stream:
        assert not asked  # until the first batch is wanted
        assert next(stream) == 3
        while len(asked) < 3:
            time.sleep(0.01)
        time.sleep(0.1)
        assert asked == [3, 4, 5]


@pytest.mark.parametrize("workers, prefetch", [(0, 0), (0, 3), (2, 1)])
def test_an_error_comes_in_the_place_of_its_batch(read, workers, prefetch):
    ready = [read(index) for index in range(3)]
    with closing(batches(ready.__getitem__, 0, 5, workers, prefetch)) as stream:
        assert_same([next(stream) for _ in range(3)], ready)
        with pytest.raises(IndexError, match="list index out of range"):
            next(stream)


def test_closing_ends_processes_and_threads(read, count):
    before = set(threading.enumerate())
    for workers in (0, 1):
        with closing(batches(read, 0, count, workers)) as stream:
            next(stream)
            assert len(multiprocessing.active_children()) == workers
        assert not multiprocessing.active_children()
    deadline = time.monotonic() + 60
    while any("grain-prefetch" in thread.name for thread in set(threading.enumerate()) - before):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_leave_signals_to_their_parent(read, count):
    with closing(batches(read, 0, count, workers=1, prefetch=1)) as stream:
        first = next(stream)
        (worker,) = multiprocessing.active_children()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid, number)
        assert_same([first, *stream], [read(index) for index in range(count)])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"start": -1}, "start is -1; allowed: 0 or more"),
        ({"start": 4, "stop": 3}, "stop is 3; allowed: 4 or more"),
        ({"workers": -1}, "workers is -1; allowed: 0 or more"),
        ({"prefetch": -1}, "prefetch is -1; allowed: 0 or more"),
        ({"workers": 1, "prefetch": 0}, "prefetch is 0; allowed: 1 or more"),
    ],
)
def test_impossible_settings_are_refused_at_once(read, settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        batches(read, **settings)


# In a process of its own.

PROGRAM = """
import functools, multiprocessing, sys, time
from absl import app
from seqmodels.data.streamed import batches
from seqmodels.data.text_files import TextFiles

def main(argv):
    how, path = argv[1:]
    read = functools.partial(TextFiles(path, "\\n").chunk, "train", batch=4, steps=9)
    stream = batches(read, 2, None if how == "hang" else 9, workers=2)
    seen = [next(stream)]
    if how == "hang":
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(1000)
    seen += stream if how != "unclosed" else []
    assert all((a.inputs == read(n).inputs).all() for n, a in enumerate(seen, 2))
    print(len(seen))

if __name__ == "__main__":
    app.run(main) if sys.argv[1] == "absl" else main(sys.argv)
"""


def start(tmp_path, how, files, launch=("program.py",)):
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, *launch, how, files.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    "how, launch, count",
    [
        ("plain", ("program.py",), 7),
        ("absl", ("-m", "program"), 7),
        (
            "unclosed",
            ("-c", "import program; program.main([0, 'unclosed', __import__('sys').argv[2]])"),
            1,
        ),
    ],
)
def test_programs_of_every_kind_can_have_workers(tmp_path, files, how, launch, count):
    with start(tmp_path, how, files, launch) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, f"{count}\n", "")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_do_not_outlive_a_killed_parent(tmp_path, files):
    with start(tmp_path, "hang", files) as process:
        workers = process.stdout.readline().split()
        process.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


MEMORY = """
import functools, resource, sys
from seqmodels.data.rows import chunks
from seqmodels.data.streamed import batches
from seqmodels.data.text_files import TextFiles

if __name__ == "__main__":
    files, workers = TextFiles(sys.argv[1], "\\n\\n"), int(sys.argv[2])
    count = chunks(files.size("train"), 32, 512)
    read = functools.partial(files.chunk, "train", batch=32, steps=512)
    steps, most = 0, []
    for index, batch in enumerate(batches(read, 0, count, workers)):
        steps += int(batch.mask.sum())
        most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(steps, most[-1] - most[20], children)
"""


def measure(tmp_path, megabytes, workers):
    """Steps read; KiB by which memory grew after the 20th batch; KiB of the largest worker."""
    block = np.random.default_rng(0).integers(32, 127, 2**20).astype(np.uint8).tobytes()
    with open(tmp_path / "large", "wb") as file:
        for _ in range(megabytes):
            file.write(block)
    (tmp_path / "memory.py").write_text(MEMORY)
    result = subprocess.run(
        [sys.executable, "memory.py", str(tmp_path / "large"), str(workers)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    return map(int, result.stdout.split())


def test_memory_does_not_grow_with_the_file(tmp_path):
    steps, grown, _ = measure(tmp_path, 20, workers=0)
    assert steps == 18 * 2**20
    assert grown < 4 * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_a_large_file(tmp_path):
    steps, grown, _ = measure(tmp_path, 200, workers=0)
    assert steps == 180 * 2**20
    assert grown < 8 * 1024


@pytest.mark.slow
def test_memory_of_workers_does_not_grow_with_a_large_file(tmp_path):
    (_, small, small_worker), (_, large, large_worker) = (
        measure(tmp_path, megabytes, workers=2) for megabytes in (20, 200)
    )
    assert large < small + 8 * 1024
    assert large_worker < small_worker + 40 * 1024  # the system maps more around each row
