"""Files too large for memory, as one stream of bytes."""

import dataclasses
import os
import pickle
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmodels.data import rows
from seqmodels.data.prepare import SPLITS
from seqmodels.data.splits import ranges
from seqmodels.data.text_files import TextFiles
from seqmodels.data.tokenizers import ByteTokenizer


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(contents)
    return root


def as_rows(files: list[bytes], separator: bytes | None) -> rows.Stream:
    """All files in memory, by the definition: where memory is reset, and that only."""
    resets = []
    for contents in files:
        for at in range(len(contents)):
            new = separator is not None and contents[:at].endswith(separator)
            resets.append(at == 0 or new)
    ids = np.concatenate([ByteTokenizer().encode(contents) for contents in files])
    rest = (0, MOST - len(ids))  # one shape is one program
    return rows.Stream(np.pad(ids, rest), None, None, np.pad(resets, rest))


def splits_of(total: int) -> dict[str, tuple[int, int]]:
    return ranges(total, dict(zip(SPLITS, (0.9, 0.05, 0.05), strict=True)))


chunk_in_memory = jax.jit(rows.chunk, static_argnums=(3, 4))
MOST = 4 * 80  # bytes in all


def file_of(least: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(b"\n\na"), min_size=least, max_size=80).map(bytes)


contents = st.tuples(file_of(40), st.lists(file_of(1), max_size=3)).flatmap(
    lambda files: st.permutations([files[0], *files[1]])
)


@settings(max_examples=60)
@given(
    contents,
    st.sampled_from([None, "\n", "\n\n", "\na\n"]),
    st.sampled_from([(1, 9), (2, 7), (3, 4), (5, 1)]),
)
def test_chunks_are_those_of_datain_memory(tmp_path_factory, files, separator, shape):
    batch, steps = shape
    root = write(tmp_path_factory.mktemp("f"), {f"{n}.txt": one for n, one in enumerate(files)})
    dataset = TextFiles(root, separator)
    stream = as_rows(files, separator and separator.encode())
    for split, (begin, end) in splits_of(sum(map(len, files))).items():
        assert dataset.size(split) == end - begin
        for index in range(rows.chunks(end - begin, batch, steps) + 1):  # and one beyond the last
            got = dataset.chunk(split, index, batch, steps)
            part = np.array([begin, end - begin], np.int32)
            expected = chunk_in_memory(stream, part, np.int32(index), batch, steps)
            for name, one, other in zip(got._fields, got, expected, strict=True):
                assert type(one) is np.ndarray and one.dtype == other.dtype, name
                np.testing.assert_array_equal(one, other, err_msg=name)


def test_memory_is_reset_after_separators_and_at_files_but_not_across_them(tmp_path):
    files = {"a": b"x" * 38 + "é\n".encode(), "b": b"\ny\n\n\nz" + "éé\n".encode() + b"u" * 20}
    dataset = TextFiles(write(tmp_path, files))

    def starts(separator):
        batch = dataclasses.replace(dataset, separator=separator).chunk("train", 0, 1, 60)
        return np.flatnonzero(batch.reset).tolist()

    assert starts(None) == [0, 41]
    assert starts("\n\n") == [0, 41, 45, 46]  # of three line ends, two pairs
    assert starts("\n") == [0, 41, 42, 44, 45, 46, 52]
    assert starts("é") == [0, 40, 41, 49, 51]


def test_splits_put_together_are_the_files(tmp_path):
    files = {"b/c.txt": b"0123456789" * 7, "a.txt": "é日𝄞".encode() * 20, ".hidden": b"no"}
    dataset = TextFiles(write(tmp_path, files | {"empty.txt": b""}))
    found = b""
    for split in SPLITS:
        batch = dataset.chunk(split, 0, 1, dataset.size(split))
        found += (batch.inputs[0] - 3).astype(np.uint8).tobytes()
    assert found == files["a.txt"] + files["b/c.txt"]


@pytest.mark.parametrize("pattern", ["*.txt", "b*.tx?", "b.txt", ""])
def test_path_is_a_file_a_directory_or_a_pattern(tmp_path, monkeypatch, pattern):
    write(tmp_path, {"b.txt": b"b" * 50, "c/d.md": b"d" * 50})
    expected = 100 if not pattern else 50
    assert sum(map(TextFiles(tmp_path / pattern).size, SPLITS)) == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sum(map(TextFiles(f"~/{pattern}").size, SPLITS)) == expected


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    write(tmp_path, {"[a].txt": b"b" * 50, "a.txt": b"a" * 60})
    assert sum(map(TextFiles(tmp_path / "[a].txt").size, SPLITS)) == 50


def test_chance_of_files_is_the_cross_entropy_of_frequencies(tmp_path, monkeypatch):
    monkeypatch.setattr("seqmodels.data.text_files._BLOCK", 7)
    drawn = np.random.default_rng(0).choice(list(b"abcd"), 400, p=[0.1, 0.2, 0.3, 0.4])
    text = bytes(drawn.tolist())
    dataset = TextFiles(write(tmp_path, {"1": text[:5], "2": text[5:380], "3": text[380:]}))
    targets = {
        split: np.array(list(text[begin + 1 : end]))  # the first is the next one of none
        for split, (begin, end) in splits_of(400).items()
    }
    counts = np.bincount(targets["train"], minlength=256) + 1.0
    outcomes = counts.sum() + 2  # UNKNOWN and BORDER
    expected = {s: -np.log2(counts[targets[s]] / outcomes).mean() for s in SPLITS}
    assert dataset.chance() == pytest.approx(expected)
    assert len(set(expected.values())) == 3


def test_memory_stays_at_the_size_of_a_batch(tmp_path):
    path = tmp_path / "large.txt"
    block = np.random.default_rng(0).integers(32, 127, 1_000_000).astype(np.uint8).tobytes()
    with open(path, "wb") as file:
        for _ in range(20):
            file.write(block)
    dataset = TextFiles(path, "\n\n", encoding="utf-8")
    count = rows.chunks(dataset.size("train"), 32, 8192)
    dataset.chunk("train", 0, 32, 8192)  # imports and caches
    tracemalloc.start()
    read = 0
    for index in range(count):
        batch = dataset.chunk("train", index, 32, 8192)
        read += batch.mask.sum()
    dataset.chance()
    (kept, peak), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
    assert read == dataset.size("train") == 18_000_000
    size = sum(array.nbytes for array in batch)
    assert peak < 10 * size + 16 * 2**20 and kept < 2 * size


@pytest.mark.parametrize("name", ["", "no.txt", "*.md"])
def test_no_file_is_one_line_that_names_the_path(tmp_path, name):
    path = tmp_path / "below" / name
    if not name:
        path.mkdir()
    message = f"^no file at .*{path.name[1:]}; allowed: a file, a directory, a glob pattern$"
    with pytest.raises(FileNotFoundError, match=message):
        TextFiles(path).size("train")


def test_what_is_no_file_of_enough_bytes_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=f"^{tmp_path}/pipe is not a regular file$"):
        TextFiles(tmp_path).size("train")
    write(tmp_path, {"empty": b"", "small": b"x" * 39})
    for name, size in (("empty", 0), ("small", 39)):
        with pytest.raises(ValueError, match=f"^.*{name} has {size} bytes; allowed: 40 or more$"):
            TextFiles(tmp_path / name).chance()
    os.symlink(tmp_path / "gone", tmp_path / "link")
    with pytest.raises(FileNotFoundError, match="No such file or directory: '.*link'$"):
        TextFiles(tmp_path / "link").size("train")


@pytest.mark.parametrize("use", ["chunk", "chance"])
def test_a_file_that_changes_its_size_is_an_error(tmp_path, use):
    write(tmp_path, {"a": b"a" * 40, "b": b"b" * 40})
    dataset = TextFiles(tmp_path)
    assert dataset.size("train") == 72

    def read(dataset):
        return dataset.chance() if use == "chance" else dataset.chunk("train", 0, 2, 36)

    read(dataset)
    copy = pickle.loads(pickle.dumps(dataset))  # as sent to another process
    for contents, now in ((b"b" * 41, 41), (b"", 0)):
        (tmp_path / "b").write_bytes(contents)
        for one in (dataset, copy):
            message = f"^{tmp_path}/b has {now} bytes, and had 40 when first read$"
            with pytest.raises(ValueError, match=message):
                read(one)
    (tmp_path / "b").unlink()
    with pytest.raises(FileNotFoundError, match="No such file or directory: '.*b'$"):
        read(dataset)


def test_only_what_is_needed_is_read(tmp_path):
    write(tmp_path, {"a": b"a" * 40, "b": b"b" * 40})
    dataset = TextFiles(tmp_path)
    assert dataset.size("train") == 72
    (tmp_path / "b").unlink()
    batch = dataset.chunk("train", 0, 1, 39)  # and the byte after, the last one of the file
    assert batch.targets[0, -1] == ord("a") + 3
    with pytest.raises(FileNotFoundError):
        dataset.chunk("train", 0, 1, 40)


@given(
    st.lists(st.sampled_from("aé日𝄞"), min_size=40, max_size=60).map("".join),
    st.sampled_from([b"\xff", b"\xc3", b"\xe6\x97", b"\xf0\x9d\x84", b"\xed\xa0\x80"]),
    st.integers(0, 60),
    st.integers(1, 9),
)
def test_bytes_that_are_not_utf8_are_named_with_their_position(
    tmp_path_factory, text, wrong, at, block
):
    good, position = text.encode(), len(text[:at].encode())
    root = write(
        tmp_path_factory.mktemp("f"),
        {"a": good, "b": good[:position] + wrong + good[position:]},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqmodels.data.text_files._BLOCK", block)
        assert TextFiles(root / "a", encoding="utf-8").size("train")
        with pytest.raises(ValueError, match=f"^{root}/b is not utf-8 at byte {position}: .*$"):
            TextFiles(root, encoding="utf-8").size("train")
    assert TextFiles(root).size("train")  # unless asked for, any bytes will do


def test_impossible_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="^separator is ''; allowed: None, or one or more"):
        TextFiles(tmp_path, "")
    with pytest.raises(ValueError, match="^encoding is 'latin-1'; allowed: None, 'utf-8'$"):
        TextFiles(tmp_path, encoding="latin-1")
    dataset = TextFiles(write(tmp_path, {"a": b"a" * 40}))
    with pytest.raises(ValueError, match="^chunk -1 does not exist; allowed: 0 or more$"):
        dataset.chunk("train", -1, 2, 2)
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        dataset.chunk("dev", 0, 2, 2)
    assert dataset.spec.inputs == dataset.spec.outputs == dataset.tokenizer().size
    assert hash(dataset) == hash(TextFiles(tmp_path))
