"""Text as data: topics of the running Python, and files too large for memory."""

import dataclasses
import os
import pickle
import tracemalloc
from itertools import combinations, pairwise
from pathlib import Path
from pydoc_data import topics as pydoc

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmodels.data import rows
from seqmodels.data.prepare import SPLITS
from seqmodels.data.pydoc_topics import RUN, PydocTopics, cut, distinct
from seqmodels.data.text_files import TextFiles
from seqmodels.data.tokenizers import BORDER, UNKNOWN, ByteTokenizer


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


# Topics.

texts = st.dictionaries(st.text("abc", min_size=1), st.text("xyz", max_size=40), max_size=8)


@given(texts)
def test_pieces_of_the_splits_put_together_are_all_topics(topics):
    pieces = [piece for split in SPLITS for piece in cut(topics, split)]
    assert "".join(piece.text for piece in pieces) == "".join(topics[k] for k in sorted(topics))
    for piece in pieces:
        text = topics[piece.topic]
        assert piece.text and text[piece.first :].startswith(piece.text)
        assert piece.ends == (piece.first + len(piece.text) == len(text))
    total = sum(map(len, topics.values()))
    for split, share in zip(SPLITS, (0.85, 0.05, 0.1), strict=True):
        assert abs(sum(len(piece.text) for piece in cut(topics, split)) - share * total) < 1


@given(st.dictionaries(st.text("abc", min_size=1), st.text("xy", max_size=12), max_size=6))
def test_distinct_topics_share_no_run_and_each_other_one_does(topics):
    def runs(text):
        return {text[n : n + 4] for n in range(len(text) - 3)}

    kept = distinct(topics, run=4)
    assert kept.items() <= topics.items()
    for one, other in combinations(kept.values(), 2):
        assert not runs(one) & runs(other)
    for topic in topics.keys() - kept.keys():
        longer = [text for text in kept.values() if len(text) >= len(topics[topic])]
        assert any(runs(topics[topic]) & runs(text) for text in longer)


def test_no_passage_of_valid_or_test_stands_in_train(data_dir):
    """By the texts themselves: topics of different names may have the same sections."""
    dataset = PydocTopics()

    def runs(split):
        data, found = dataset.load(split, data_dir), set()
        for start, length in zip(data.starts, data.lengths, strict=True):
            text = dataset.tokenizer(data_dir).decode(data.inputs[start : start + length])
            found |= {text[first : first + RUN] for first in range(len(text) - RUN + 1)}
        return found

    train, valid, test = map(runs, SPLITS)
    assert min(map(len, (train, valid, test))) > 5000
    assert not train & test
    assert not train & valid and not valid & test


def test_topics_come_back_from_ids_cut_only_between_splits(data_dir):
    dataset = PydocTopics()
    tokenizer, found, reset = dataset.tokenizer(data_dir), [], 0
    for split in SPLITS:
        data = dataset.load(split, data_dir)
        stream = rows.as_stream(data)
        assert len(np.unique(data.starts)) == len(data.starts) == stream.reset.sum()
        assert (data.inputs[data.starts[1:]] == BORDER).all()  # each later row starts at one ...
        assert (data.inputs == BORDER).sum() == len(data.starts) - 1 + (split != "valid")
        for n, (start, length) in enumerate(zip(data.starts, data.lengths, strict=True)):
            row = data.inputs[start : start + length]
            assert (row[1:-1] != BORDER).all()
            if split == "train" and n < len(data.starts) - 1:
                assert (row[0], row[-1]) == (BORDER, BORDER)  # ... and ends at the next
        found.append(tokenizer.decode(data.inputs))
        reset += len(data.starts)
    topics = distinct(pydoc.topics)
    assert sum(map(len, topics.values())) > 0.7 * sum(map(len, pydoc.topics.values()))
    everything = "".join(text for _, text in sorted(topics.items()))
    seen = set(everything[: len(found[0])])
    expected = "".join(one if one in seen else "\ufffd" for one in everything)
    assert "".join(found) == expected
    assert reset == len(topics) + 2  # two topics are cut


def test_topics_meet_the_contract_of_data_sets(data_dir, tmp_path):
    dataset = PydocTopics()
    spec, seen = dataset.spec, set()
    assert spec == dataset.spec and spec.inputs == spec.outputs
    assert spec.inputs == dataset.tokenizer(data_dir).size
    for split in SPLITS:
        data, ids = dataset.load(split, data_dir), dataset.ids(split, data_dir)
        assert (data.inputs.dtype, data.starts.dtype, data.lengths.dtype) == (np.int32,) * 3
        assert data.inputs.min() >= UNKNOWN and data.inputs.max() < spec.inputs
        assert len(ids) == len(data.starts) and not seen & set(ids)
        seen |= set(ids)
        np.testing.assert_array_equal(ids, dataset.ids(split, tmp_path))  # prepared anew
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        dataset.load("dev", data_dir)
    with pytest.raises(ValueError, match="'dev' is unknown"):
        dataset.ids("dev", data_dir)


@pytest.mark.parametrize("split", SPLITS)
def test_chance_of_topics_is_the_cross_entropy_of_frequencies(split, data_dir):
    dataset = PydocTopics()

    def targets(split):
        data = dataset.load(split, data_dir)
        row = zip(data.starts, data.lengths, strict=True)
        return np.concatenate([data.inputs[start + 1 : start + length] for start, length in row])

    counts = np.bincount(targets("train"), minlength=dataset.spec.outputs) + 1.0
    outcomes = counts[1:].sum()  # padding is none
    expected = -np.log2(counts[targets(split)] / outcomes).mean()
    chance = dataset.chance(*(dataset.load(name, data_dir) for name in ("train", split)))
    assert chance == pytest.approx(expected)
    assert 4 < chance < 5.5  # of English text in 8 bits a byte


def test_changed_topics_are_another_data_set(monkeypatch, data_dir, tmp_path):
    before = PydocTopics().load("train", data_dir).inputs, PydocTopics().spec
    monkeypatch.setattr(pydoc, "topics", {"a": "ab" * 50, "b": "é" * 10})
    assert PydocTopics().spec.inputs == 5
    assert PydocTopics().load("train", data_dir).inputs.tolist() == [2] + [3, 4] * 46 + [3]
    assert PydocTopics().ids("test", data_dir).tolist() == ["a[99:100]", "b[0:10]"]
    assert (PydocTopics().load("test", data_dir).inputs == UNKNOWN).sum() == 10
    monkeypatch.undo()
    np.testing.assert_array_equal(PydocTopics().load("train", data_dir).inputs, before[0])
    assert PydocTopics().spec == before[1]


# Files.


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
    bounds = 0, total * 90 // 100, total * 95 // 100, total
    return dict(zip(SPLITS, pairwise(bounds), strict=True))


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
