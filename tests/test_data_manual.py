"""Reading files placed by hand: finding, unpacking, and parsers that never answer nonsense."""

import gzip
import io
import json
import re
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed import packed, rendered_ts

from seqmodels.data.japanese_vowels import parse_ts
from seqmodels.data.manual import (
    check_sha256,
    extract,
    manual_dir,
    manual_file,
    text_lines,
)
from seqmodels.data.mnist_10k import parse_digits
from seqmodels.data.movie_reviews import parse_snippets

# A parser gets the bytes, and what to call the file.
PARSERS = {"ts": parse_ts, "snippets": parse_snippets, "digits": parse_digits, "lines": text_lines}


def refusal(parse, contents):
    """The message of the one allowed error, or None if there is none."""
    try:
        parse(contents, "here")
    except ValueError as error:
        assert re.match(r"here:", str(error)) and "\n" not in str(error)
        return str(error)
    return None


# Finding.


def test_the_manual_directory_is_the_variable_or_below_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQMODELS_DATA_DIR", str(tmp_path / "default"))
    monkeypatch.delenv("SEQMODELS_MANUAL_DIR", raising=False)
    assert manual_dir() == manual_dir("") == tmp_path / "default/manual"
    assert manual_dir(tmp_path / "other") == tmp_path / "other/manual"
    monkeypatch.setenv("SEQMODELS_MANUAL_DIR", str(tmp_path / "placed"))
    assert manual_dir(tmp_path / "other") == tmp_path / "placed"


def test_a_file_is_found_in_the_order_of_directories_then_patterns(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    (other / "b.txt").mkdir(parents=True)  # a folder is no file
    for path in (one / "b-1.zip", other / "a.txt"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert manual_file(["a.txt", "b-*.zip"], "S", one, other) == one / "b-1.zip"
    assert manual_file(["a.txt", "b-*.zip"], "S", other, one) == other / "a.txt"
    message = (
        f"no file b.txt or c-*.whl in {other} or {tmp_path / 'absent'}; place it there by hand, "
        "or set SEQMODELS_MANUAL_DIR to where it is; source: the shop"
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        manual_file(["b.txt", "c-*.whl"], "the shop", other, tmp_path / "absent")


# Unpacking.

PACKED = {"x/._a.txt": b"?", "x/ca.txt": b"-", "x/a.txt": b"hello\n" * 50, "b": bytes(range(256))}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
class TestArchives:
    def test_members_are_found_by_the_ends_of_their_paths(self, kind):
        files = extract(packed(kind, PACKED), "here", ["b", "a.txt", "x/a.txt"])
        assert files == [PACKED["b"], PACKED["x/a.txt"], PACKED["x/a.txt"]]

    def test_a_missing_member_is_named(self, kind):
        with pytest.raises(ValueError, match=r"^here: the archive has no file c\.txt$"):
            extract(packed(kind, PACKED), "here", ["b", "c.txt"])

    @given(data=st.data())
    def test_a_damaged_archive_is_refused_or_gives_what_was_packed(self, kind, data):
        whole, names = bytearray(packed(kind, PACKED)), ["a.txt", "b"]
        if data.draw(st.booleans(), "cut"):
            del whole[data.draw(st.integers(0, len(whole) - 1), "at") :]
        else:
            at = data.draw(st.integers(0, len(whole) - 1), "at")
            whole[at] ^= data.draw(st.integers(1, 255), "flip")
        files = []
        message = refusal(lambda c, where: files.extend(extract(c, where, names)), bytes(whole))
        assert message or files == [PACKED["x/a.txt"], PACKED["b"]]

    def test_a_link_that_leads_nowhere_is_passed_over(self, kind):
        if kind == "zip":
            return
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as file:
            link = tarfile.TarInfo("a.txt")
            link.type, link.linkname = tarfile.SYMTYPE, "absent"
            file.addfile(link)
        with pytest.raises(ValueError, match="no file a.txt"):
            extract(buffer.getvalue(), "here", ["a.txt"])


@pytest.mark.parametrize("contents", [b"", b"no archive", b"PK", gzip.compress(b"no tar", mtime=0)])
def test_what_is_no_archive_is_refused(contents):
    with pytest.raises(ValueError, match=r"^here: not a readable archive \(.+\)$"):
        extract(contents, "here", ["a"])


def test_checksums():
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    check_sha256(b"hello", "here", digest, "S")
    with pytest.raises(ValueError, match=f"^here: SHA-256 is .*, expected {digest}: .*source: S$"):
        check_sha256(b"hellp", "here", digest, "S")


# Text.


# Some of these end a line for `str.splitlines`, but not in a file.
LETTERS = "a é\t\u2028\x85\x0c\x1c𝄞"


@given(st.lists(st.text(LETTERS), min_size=1))
def test_lines_are_what_was_joined_on_any_system(lines):
    for end in ("\n", "\r\n"):
        text = (end.join(lines) + end).encode()
        assert text_lines(text, "here") == lines
        assert text_lines(b"\xef\xbb\xbf" + text, "here") == lines


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_not_utf8_has_its_line_named(mark):
    with pytest.raises(ValueError, match=r"^here:3: not UTF-8 \(.+\)$"):
        text_lines(mark + b"a\r\n\xc3\xa9\n\xe9 \n\xff\n", "here")


# Parsers, all of them.


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@given(contents=st.binary(max_size=60))
def test_rubbish_is_refused_in_one_line_or_is_none(parse, contents):
    refusal(parse, contents)
    if parse is not text_lines:
        assert refusal(parse, b"\xff\xfe" + contents)  # a text in UTF-16
        assert refusal(parse, b"")


# .ts files.


@st.composite
def ts_cases(draw):
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    values = st.floats(-1e6, 1e6, width=32)
    return [
        (
            np.reshape(draw(st.lists(values, min_size=12 * n, max_size=12 * n)), (n, 12)).astype(
                np.float32
            ),
            draw(st.integers(0, 8)),
        )
        for n in lengths
    ]


def assert_cases(parsed, cases):
    for at, ((line, series, speaker), (expected, label)) in enumerate(
        zip(parsed, cases, strict=True)
    ):
        assert (line, speaker) == (at + 5, label)
        np.testing.assert_array_equal(series, expected, strict=True)


@given(ts_cases())
def test_ts_gives_back_what_was_written(cases):
    contents = rendered_ts(cases)
    assert_cases(parse_ts(contents, "here"), cases)
    assert_cases(parse_ts(contents.replace(b"\n", b"\r\n"), "here"), cases)


@given(ts_cases(), st.data())
def test_a_ts_file_cut_off_anywhere_is_refused_or_lacks_whole_cases(cases, data):
    contents = rendered_ts(cases)
    cut = contents[: data.draw(st.integers(0, len(contents) - 1))]
    if not refusal(parse_ts, cut):
        parsed = parse_ts(cut, "here")
        assert parsed
        assert_cases(parsed, cases[: len(parsed)])


GOOD = ":".join(["1,2"] * 12)
BAD_LINES = {
    "": "0 dimensions and a label, expected 12",
    "1,2:3": "1 dimensions and a label, expected 12",
    f"{GOOD}:1,2:3": "13 dimensions and a label, expected 12",
    f"{GOOD}:": "label '', allowed: 1, 2, 3, 4, 5, 6, 7, 8, 9",
    f"{GOOD}:10": "label '10', allowed: 1, 2, 3, 4, 5, 6, 7, 8, 9",
    f"1,2,3{GOOD[3:]}:1": "dimensions of different lengths [2, 3]",
    f"1,{GOOD[3:]}:1": "'' is not a finite number",
    f"1,?{GOOD[3:]}:1": "'?' is not a finite number",
    f"1,nan{GOOD[3:]}:1": "'nan' is not a finite number",
    f"1,1e999{GOOD[3:]}:1": "'1e999' is not a finite number",
}


@pytest.mark.parametrize("line, reason", BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_a_bad_line_of_a_ts_file_is_named(line, reason):
    contents = f"@data\n{GOOD}:1\n{line}\n{GOOD}:2\n".encode()
    assert refusal(parse_ts, contents) == f"here:3: {reason}"


def test_a_ts_file_without_data_is_refused():
    assert refusal(parse_ts, b"#\n1:2\n") == "here:2: the file ends without a line @data"
    assert refusal(parse_ts, b"#\n@data\n") == "here:2: the file ends without a line of data"


# Digits.


@given(st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_pixels_survive_the_rounding_to_three_digits(images, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (images, 784), np.uint8)
    values = (pixels / 255).round(3).ravel().tolist()
    contents = json.dumps({"data": values}).encode()
    np.testing.assert_array_equal(parse_digits(contents, "here"), pixels, strict=True)
    assert refusal(parse_digits, contents[: seed % len(contents)]).startswith("here: not JSON (")


BAD_DIGITS = {
    "[1]": "no list `data`",
    '{"data": 5}': "no list `data`",
    '{"data": []}': "0 pixels, expected a multiple of 784",
    '{"data": [0, 1]}': "2 pixels, expected a multiple of 784",
    '{"data": [0, 1.01]}': "data[1] is 1.01, allowed: numbers from 0 to 1",
    '{"data": [0, -1e-9]}': "data[1] is -1e-09, allowed: numbers from 0 to 1",
    '{"data": [NaN]}': "data[0] is nan, allowed: numbers from 0 to 1",
    '{"data": [true]}': "data[0] is True, allowed: numbers from 0 to 1",
    '{"data": ["0"]}': "data[0] is '0', allowed: numbers from 0 to 1",
    '{"data": [0': "not JSON (Expecting ',' delimiter: line 1 column 12 (char 11))",
}


@pytest.mark.parametrize("text, reason", BAD_DIGITS.items(), ids=range(len(BAD_DIGITS)))
def test_bad_digits_are_named_by_their_place(text, reason):
    assert refusal(parse_digits, text.encode()) == f"here: {reason}"


# Film reviews.


def test_snippets_are_read_with_tabs_and_line_ends_of_windows():
    contents = "1\t2.5\tA fine – film.\r\n2\t-4\tNo\u2028way!".encode()
    assert parse_snippets(contents, "here") == [
        (1, 2.5, "A fine – film."),
        (2, -4.0, "No\u2028way!"),
    ]


BAD_SNIPPETS = {
    "2\t1": "2 fields between tabs, expected 3",
    "2\t1\ta\tb": "4 fields between tabs, expected 3",
    "3\t1\ta": "snippet number '3', expected 2",
    "2\t?\ta": "rating '?', allowed: -4 to 4",
    "2\tnan\ta": "rating 'nan', allowed: -4 to 4",
    "2\t5\ta": "rating '5', allowed: -4 to 4",
    "2\t1\t ": "the text has no words",
    "": "1 fields between tabs, expected 3",
}


@pytest.mark.parametrize("line, reason", BAD_SNIPPETS.items(), ids=range(len(BAD_SNIPPETS)))
def test_a_bad_line_of_snippets_is_named(line, reason):
    contents = f"1\t0\ta\r\n{line}\r\n3\t1\tb\r\n".encode()
    assert refusal(parse_snippets, contents) == f"here:2: {reason}"
