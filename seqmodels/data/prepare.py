"""Prepares a TFDS builder in the cache directory exactly once, and reads it back.

TFDS by itself is not safe against a second process, nor tidy after a kill. Here a file lock in
the cache directory makes one process prepare while the others wait, and the remains of a killed
preparation go before the next one starts. Nothing here needs TensorFlow, as long as the builder
does not. TFDS is imported by the functions that build, so that importing a data set stays cheap.
"""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

DATA_DIR_VARIABLE = "SEQMODELS_DATA_DIR"
SPLITS = ("train", "valid", "test")


def default_data_dir() -> Path:
    """$SEQMODELS_DATA_DIR, or seqmodels/data below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get(DATA_DIR_VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "seqmodels" / "data"


def prepare(
    make_builder: Callable[[Path], "DatasetBuilder"], data_dir: str | Path | None = None
) -> "DatasetBuilder":
    """A builder whose data are on disk, prepared now if no process did so before.

    make_builder: constructs the builder for a cache directory. It is called again after waiting
        for the lock, since a builder reads at construction what the disk holds.
    data_dir: the cache directory; None or empty means `default_data_dir()`.

    Raises OSError if the data have to be prepared and the directory cannot be written. Prepared
    data are read without the lock, so a read-only cache will do for them.
    """
    directory = Path(data_dir).expanduser() if data_dir else default_data_dir()
    builder = make_builder(directory)
    if builder.info.splits:  # read from a complete directory: TFDS renames it when it is
        return builder
    with _locked(directory):
        builder = make_builder(directory)
        if not builder.info.splits:
            # Only a holder of the lock writes here: whatever is unfinished was left by a kill.
            for remains in Path(builder.data_dir).parent.glob("incomplete.*"):
                shutil.rmtree(remains)
            import tensorflow_datasets as tfds

            print(f"preparing {builder.name} in {directory}, once", file=sys.stderr)
            if not sys.stderr.isatty():
                tfds.disable_progress_bar()
            # TFDS prints what it does; standard output belongs to the caller.
            with contextlib.redirect_stdout(io.StringIO()):
                # Its default format, tfrecord, needs TensorFlow; parquet loses examples.
                builder.download_and_prepare(file_format="array_record")
    return builder


def read(builder: "DatasetBuilder", split: str) -> list[dict[str, Any]]:
    """All examples of a prepared split, decoded, in the order in which they are stored."""
    return list(builder.as_data_source(split))


def check_split(split: str) -> None:
    """Raises ValueError unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown; allowed: {', '.join(SPLITS)}")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; the system lets go of it when a process dies."""
    lock = FileLock(directory / ".lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise OSError(
            f"cannot write to the data directory {directory} ({error.strerror or error}); "
            f"set {DATA_DIR_VARIABLE}, or pass data_dir, to name one that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()
