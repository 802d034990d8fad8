"""Batches that are read while the model computes, in threads or processes of their own.

A stream is a function from the number of a batch to the batch. So the place where a run stopped
is that number, whatever was read ahead of it and by however many workers.
"""

import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator

from seqmodels.types import Batch

ENDLESS = 2**62
"""Batches of a stream without a stop: what grain still counts exactly."""


def batches(
    read: Callable[[int], Batch],
    start: int = 0,
    stop: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
) -> Iterator[Batch]:
    """read(start), read(start + 1), ... up to stop - 1, or without end, read ahead by grain.

    read      gives batch i as NumPy arrays, the same at each call and in each process
    workers   processes that read in turns; 0: a thread of this process. They begin afresh
              (`spawn`), so a script starts them below `if __name__ == "__main__"`, and `read`
              and its arguments are pickled. More do not change a batch nor the order.
    prefetch  batches read ahead, of each worker; 0: none, with workers at least 1

    Close the iterator (`contextlib.closing`) to end threads and processes at once. An error in
    `read` is raised in its place. Raises ValueError for a negative number, or stop < start.
    """
    for name, value, least in (
        ("start", start, 0),
        ("stop", ENDLESS if stop is None else stop, start),
        ("workers", workers, 0),
        ("prefetch", prefetch, 1 if workers else 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; allowed: {least} or more")
    return _batches(read, start, ENDLESS if stop is None else stop, workers, prefetch)


def _batches(
    read: Callable[[int], Batch], start: int, stop: int, workers: int, prefetch: int
) -> Iterator[Batch]:
    import grain

    # One thread: cutting batches holds the interpreter's lock, so more would only take turns. A
    # worker reads ahead without, by filling its queue.
    ahead = 0 if workers else prefetch
    options = grain.ReadOptions(num_threads=min(ahead, 1), prefetch_buffer_size=ahead)
    # As bytes, since grain leaves the last arrays of each worker behind in shared memory.
    sent = functools.partial(_pickled, read) if workers else read
    reading = grain.MapDataset.range(stop)[start:].map(sent).to_iter_dataset(options)
    if workers:
        # Not flags of ours: grain hands its own to each process and dies where absl has parsed
        # none, as in a notebook, a test, or a program with another parser.
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        reading = reading.mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(
                num_workers=workers, per_worker_buffer_size=prefetch
            ),
            worker_init_fn=_live_with_parent,
        )
    iterator = iter(reading)
    try:
        for batch in iterator:
            yield pickle.loads(batch) if workers else batch
    finally:
        iterator.close()


def _pickled(read: Callable[[int], Batch], index: int) -> bytes:
    return pickle.dumps(read(index), protocol=pickle.HIGHEST_PROTOCOL)


def _live_with_parent(worker: int, workers: int) -> None:
    """Signals to stop are the parent's to answer; and no worker outlives it, however it died."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def leave() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
