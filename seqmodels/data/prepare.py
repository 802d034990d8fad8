"""Prepares data with TFDS in the cache directory exactly once, and reads them back.

TFDS by itself is not safe against a second process, nor tidy after a kill. Here a file lock in
the cache directory makes one process prepare while the others wait, and the remains of a killed
preparation go before the next one starts. Nothing here needs TensorFlow, as long as the builder
does not. TFDS is imported by the functions that build, so that importing a data set stays cheap.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

DATA_DIR_VARIABLE = "SEQMODELS_DATA_DIR"
SPLITS = ("train", "valid", "test")
INFO = "dataset_info.json"

Feature = type | tuple[tuple[int | None, ...], type]
"""`str`, the NumPy type of a number, or shape and type of an array, None where a length varies."""
Examples = Iterable[Mapping[str, Any]]


def default_data_dir() -> Path:
    """$SEQMODELS_DATA_DIR, or seqmodels/data below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get(DATA_DIR_VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "seqmodels" / "data"


def stored(
    name: str,
    version: str,
    features: Mapping[str, Feature],
    splits: Callable[[], Mapping[str, Examples]],
    data_dir: str | Path | None = None,
    *,
    config: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> "DatasetBuilder":
    """A data set as TFDS keeps it, below name/config/version; prepared now if it was not before.

    features  of each example, by name
    splits    gives the examples of each split in the order in which they are to be kept. It is
              called to prepare the data, and never afterwards
    config    names what the contents depend on besides the version
    metadata  to be kept with the data and found in `builder.info.metadata`; `splits` may fill it

    Raises as `prepare` does, and what `splits` raises.
    """
    import tensorflow_datasets as tfds

    def feature(kind: Feature) -> Any:
        if isinstance(kind, tuple):
            return tfds.features.Tensor(shape=kind[0], dtype=kind[1])
        return tfds.features.Text() if kind is str else tfds.features.Scalar(kind)

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version(version)
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({k: feature(v) for k, v in features.items()}),
                disable_shuffling=True,  # stored in the order of the keys
                metadata=None if metadata is None else tfds.core.MetadataDict(),
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            found = splits()
            if metadata is not None:
                self.info.metadata.update(metadata)
            return {split: self._generate_examples(examples) for split, examples in found.items()}

        def _generate_examples(self, examples: Examples) -> Iterator[tuple[int, Any]]:
            yield from enumerate(examples)

    Builder.name = name
    return prepare(lambda path: Builder(data_dir=path, file_format="array_record"), data_dir)


def prepare(
    make_builder: Callable[[Path], "DatasetBuilder"], data_dir: str | Path | None = None
) -> "DatasetBuilder":
    """A builder whose data are on disk, prepared now if no process did so before.

    make_builder: constructs the builder for a cache directory. It is called again after waiting
        for the lock, since a builder reads at construction what the disk holds.
    data_dir: the cache directory; None or empty means `default_data_dir()`.

    Raises OSError if the data have to be prepared and the directory cannot be written, or if what
    was prepared is damaged. Prepared data are read without the lock, so a read-only cache will do.
    """
    directory = Path(data_dir).expanduser() if data_dir else default_data_dir()
    builder = opened(make_builder, directory)
    if builder.info.splits:  # read from a complete directory: TFDS renames it when it is
        return builder
    with _locked(directory):
        builder = opened(make_builder, directory)
        if not builder.info.splits:
            if Path(builder.data_dir).exists():  # TFDS would take it for the whole
                raise damaged(builder.data_dir, f"no splits in its {INFO}")
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
    """All examples of a prepared split, decoded, in the order in which they are stored.

    Raises OSError where the files are not what was prepared.
    """
    with undamaged(builder.data_dir):
        return list(builder.as_data_source(split))


def opened(make_builder: Callable[[Path], "DatasetBuilder"], directory: Path) -> "DatasetBuilder":
    """The builder for a cache directory; OSError where what describes its data is damaged."""
    try:
        return make_builder(directory)
    except Exception as error:
        for path in directory.rglob(INFO):  # the error itself names no file
            if not _is_object(path):
                raise damaged(path.parent, f"{INFO} is not a JSON object") from error
        raise


@contextlib.contextmanager
def undamaged(directory: str | Path) -> Iterator[None]:
    """Turns whatever a reader says of files that are not what was prepared into an OSError."""
    try:
        yield
    except (OSError, MemoryError, NotImplementedError):  # of the system; of a format of files
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(directory, reason[:200]) from error


def damaged(directory: str | Path, reason: str) -> OSError:
    return OSError(
        f"the prepared data in {directory} are damaged ({reason}); delete that directory, and the "
        "next start prepares them again"
    )


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


def _is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError:
        return False
