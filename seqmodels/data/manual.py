"""Files that a user places by hand, and what is needed to read them without surprises.

Some data are inside packages made for something else, or may not be fetched for the user. They
are looked for in $SEQMODELS_MANUAL_DIR, or `manual` below the data directory, once: prepared data
do not need them any more. Whatever is wrong with a file is one line that names it, and the line
or position in it.
"""

import functools
import gzip
import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from seqmodels.data.prepare import default_data_dir

MANUAL_DIR_VARIABLE = "SEQMODELS_MANUAL_DIR"

_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,  # of gzip
    RuntimeError,  # a zip that wants a password
    NotImplementedError,  # or a method of compression of its own
    ValueError,
)


def manual_dir(data_dir: str | Path | None = None) -> Path:
    """$SEQMODELS_MANUAL_DIR, or `manual` below `data_dir` (None or empty: the default one)."""
    if chosen := os.environ.get(MANUAL_DIR_VARIABLE):
        return Path(chosen).expanduser()
    return (Path(data_dir).expanduser() if data_dir else default_data_dir()) / "manual"


def manual_file(patterns: Sequence[str], source: str, *directories: Path) -> Path:
    """The first file that matches one of `patterns` in the first directory that has one.

    source: where a user gets it, for the error message.

    Raises FileNotFoundError that names the patterns, the directories and the source.
    """
    for directory in directories:
        for pattern in patterns:
            for path in sorted(directory.glob(pattern)):
                if path.is_file():
                    return path
    raise FileNotFoundError(
        f"no file {' or '.join(patterns)} in {' or '.join(map(str, directories))}; place it there "
        f"by hand, or set {MANUAL_DIR_VARIABLE} to where it is; source: {source}"
    )


def extract(archive: bytes, where: str, names: Sequence[str]) -> list[bytes]:
    """The files `names` of a zip (a wheel) or a .tar.gz (an sdist), in the order of `names`.

    names: the last parts of their paths in the archive; `a/b` finds `x/a/b`, not `x/ca/b`.
    where: what to call the archive in a message.

    Raises ValueError if the archive is damaged or lacks one of them.
    """
    found: dict[str, bytes] = {}
    try:
        members = _zip_members if archive[:2] == b"PK" else _tar_members
        for path, read in members(archive):
            wanted = [name for name in names if f"/{path}".endswith(f"/{name}")]
            if wanted:
                contents = read()
                for name in wanted:
                    found.setdefault(name, contents)
    except _DAMAGED as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{where}: not a readable archive ({one_line(reason)})") from error
    for name in names:
        if name not in found:
            raise ValueError(f"{where}: the archive has no file {name}")
    return [found[name] for name in names]


def text_lines(contents: bytes, where: str) -> list[str]:
    """The lines of a UTF-8 text, ended as on Unix or Windows; line n has index n - 1.

    Raises ValueError, with the line, if the bytes are not UTF-8; and if there are none.
    """
    if not contents:
        raise ValueError(f"{where}: the file is empty")
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # In the error's own bytes: its position does not count a byte order mark.
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{where}:{line}: not UTF-8 ({error.reason})") from error
    # str.splitlines would also split at characters that may stand inside a line.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def check_sha256(contents: bytes, where: str, expected: str, source: str) -> None:
    """Raises ValueError unless the SHA-256 of `contents` is `expected`, in hexadecimal."""
    digest = hashlib.sha256(contents).hexdigest()
    if digest != expected:
        raise ValueError(
            f"{where}: SHA-256 is {digest}, expected {expected}: "
            f"a damaged or another file; source: {source}"
        )


def one_line(message: str) -> str:
    """A message of another library without its line breaks."""
    return " ".join(message.split())


def _zip_members(archive: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        for name in file.namelist():
            yield name, functools.partial(file.read, name)


def _tar_members(archive: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    contents = gzip.decompress(archive)  # all of it, so that its checksum is compared
    with tarfile.open(fileobj=io.BytesIO(contents), mode="r:") as file:
        for member in file:
            opened = file.extractfile(member) if member.isfile() else None
            if opened:
                yield member.name, opened.read
