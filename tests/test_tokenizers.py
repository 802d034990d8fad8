"""Tokenizers: what goes in comes out, what is unknown is one id, and a saved one does the same."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmodels.data.tokenizers import (
    BORDER,
    PAD,
    RESERVED,
    UNKNOWN,
    ByteTokenizer,
    CharTokenizer,
    WordTokenizer,
    bordered,
    load_tokenizer,
    split_words,
    target_counts,
    unigram_bits,
)

KINDS = (ByteTokenizer, CharTokenizer, WordTokenizer)
TEXTS = ("To be, or not to be:", "naïve cafés, 𝄞 and 日本", "to be_2 -- to BE", "")
plain = st.text(st.characters(exclude_categories=["Cs"]))
few = st.text("aAbB ä𝄞.,\n", max_size=30)  # collides often


def fit(cls, texts=TEXTS):
    return cls() if cls is ByteTokenizer else cls.fit(texts)


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return fit(request.param)


def ids_of(tokenizer, **options):
    return st.lists(st.integers(0, tokenizer.size - 1), **options).map(
        lambda ids: np.array(ids, np.int32)
    )


# Round trips.


@given(plain)
def test_bytes_and_fitted_characters_come_back(text):
    for tokenizer in (ByteTokenizer(), CharTokenizer.fit([text])):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.dtype == np.int32 and ids.ndim == 1
        assert not np.isin(ids, (PAD, UNKNOWN, BORDER)).any()
        assert (ids < tokenizer.size).all()


@given(st.binary())
def test_byte_b_has_id_b_plus_3(source):
    assert ByteTokenizer().encode(source).tolist() == [byte + 3 for byte in source]
    assert ByteTokenizer().decode(ByteTokenizer().encode(source)) == source.decode(errors="replace")


@given(st.text())
def test_words_come_back_lower_cased_with_single_spaces(text):
    tokenizer = WordTokenizer.fit([text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == " ".join(split_words(text))
    np.testing.assert_array_equal(tokenizer.encode(tokenizer.decode(ids)), ids)
    assert "".join(split_words(text)) == "".join(text.lower().split())  # nothing visible is lost


@given(st.lists(few), few)
def test_what_was_not_fitted_is_unknown_and_nothing_else_is(texts, text):
    chars, words = CharTokenizer.fit(texts), WordTokenizer.fit(texts)
    known = set("".join(texts))
    assert (chars.encode(text) == UNKNOWN).tolist() == [one not in known for one in text]
    known = {word for one in texts for word in split_words(one)}
    expected = [one not in known for one in split_words(text)]
    assert (words.encode(text) == UNKNOWN).tolist() == expected


@given(st.data())
def test_streamed_pieces_are_the_decoded_text(data):
    for cls in KINDS:
        tokenizer = fit(cls)
        ids = data.draw(ids_of(tokenizer))
        pieces = list(tokenizer.decode_stream(ids))
        assert "".join(pieces) == tokenizer.decode(ids)
        assert "" not in pieces
        assert list(tokenizer.decode_stream(ids.tolist())) == pieces  # any iterable of ids


@given(st.data())
def test_borders_and_padding_are_left_out_wherever_they_stand(data):
    for cls in KINDS:
        tokenizer = fit(cls)
        ids = data.draw(ids_of(tokenizer))
        assert tokenizer.decode(ids) == tokenizer.decode(ids[(ids != PAD) & (ids != BORDER)])


def test_a_character_of_several_bytes_comes_out_whole_and_at_once():
    tokenizer = ByteTokenizer()
    text, seen = "aé日𝄞z", []

    def fed():
        for one in tokenizer.encode(text):
            yield one
            seen.append(one)

    for piece, character in zip(tokenizer.decode_stream(fed()), text, strict=True):
        assert piece == character
        assert len(seen) == len(text[: text.index(character) + 1].encode()) - 1  # not one later


def test_bytes_that_are_no_text_and_unknown_ids_become_replacement_characters():
    tokenizer = ByteTokenizer()
    cut = tokenizer.encode("日")[:2]
    assert tokenizer.decode(cut) == "\ufffd"
    assert list(tokenizer.decode_stream(cut)) == ["\ufffd"]
    for cls in KINDS:
        assert fit(cls).decode(np.array([UNKNOWN])) == "\ufffd"


# Vocabularies.


def test_characters_are_sorted_by_code_point():
    assert CharTokenizer.fit(["b𝄞a", "Zé"]).symbols == "Zabé𝄞"


def test_an_empty_vocabulary_knows_nothing():
    assert CharTokenizer.fit([]).encode("\0a").tolist() == [UNKNOWN, UNKNOWN]
    assert WordTokenizer.fit([]).encode("a").tolist() == [UNKNOWN]


def test_words_are_sorted_by_count_then_spelling():
    texts = ["b b a a c", "B d, e"]
    assert WordTokenizer.fit(texts).words == ("b", "a", ",", "c", "d", "e")
    assert WordTokenizer.fit(texts, min_count=2).words == ("b", "a")
    assert WordTokenizer.fit(texts, min_count=3).words == ("b",)
    assert WordTokenizer.fit(texts, most=3).words == ("b", "a", ",")


def test_sizes_count_the_reserved_ids():
    assert (PAD, UNKNOWN, BORDER, RESERVED) == (0, 1, 2, 3)
    assert ByteTokenizer().size == 259
    assert CharTokenizer.fit(["ab"]).size == 5
    assert WordTokenizer.fit(["a b"]).size == 5


@given(st.lists(st.text()), st.text())
def test_a_saved_tokenizer_does_the_same(texts, text):
    for cls in KINDS:
        tokenizer = fit(cls, texts)
        again = load_tokenizer(json.loads(json.dumps(tokenizer.to_json())))
        assert again == tokenizer and hash(again) == hash(tokenizer)
        if cls is not ByteTokenizer:  # UTF-8 has no lone surrogates
            np.testing.assert_array_equal(again.encode(text), tokenizer.encode(text))


def test_a_saved_tokenizer_knows_whether_documents_have_borders():
    for borders in (True, False):
        saved = ByteTokenizer(borders).to_json()
        assert load_tokenizer(saved) == ByteTokenizer(borders)
    assert load_tokenizer({"kind": "byte"}).borders
    assert CharTokenizer.fit(["a"]).borders and WordTokenizer.fit(["a"]).borders


@pytest.mark.parametrize(
    "saved, message",
    [
        ({"kind": "bpe"}, "tokenizer kind is 'bpe'; allowed: byte, char, word$"),
        ({}, "tokenizer kind is None"),
        ({"kind": "char"}, "of kind 'char' has no field 'symbols'$"),
        ({"kind": "char", "symbols": "aba"}, "symbols has 'a' 2 times; allowed: once$"),
        ({"kind": "char", "symbols": "ba"}, "symbols are not sorted"),
        ({"kind": "word", "words": ["a", "b", "a"]}, "words has 'a' 2 times"),
        ({"kind": "word", "words": ["A"]}, "words has 'A', which is not one lower-cased word"),
        ({"kind": "word", "words": ["a b"]}, "words has 'a b', which is not one"),
    ],
)
def test_a_damaged_save_is_refused(saved, message):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(saved)


@pytest.mark.parametrize("outside", [-1, 10_000])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer, outside):
    message = f"id {outside} is not in the vocabulary; allowed: 0..{tokenizer.size - 1}$"
    with pytest.raises(ValueError, match=message):
        tokenizer.decode(np.array([RESERVED, outside]))
    with pytest.raises(ValueError, match=message):
        list(tokenizer.decode_stream([RESERVED, outside]))


# Documents and chance.

documents = st.lists(st.lists(st.integers(3, 9), max_size=5), min_size=1, max_size=5)


@given(documents, st.booleans(), st.booleans())
def test_rows_are_documents_between_borders_they_share(documents, starts, ends):
    data = bordered([np.array(one, np.int32) for one in documents], starts, ends)
    last = len(documents) - 1
    for n, document in enumerate(documents):
        before = [BORDER] if n > 0 or starts else []
        after = [BORDER] if n < last or ends else []
        start, stop = data.starts[n], data.starts[n] + data.lengths[n]
        assert data.inputs[start:stop].tolist() == [*before, *document, *after]
        if n < last:
            assert data.starts[n + 1] == stop - 1  # the shared border
    assert data.targets is None and data.inputs.dtype == np.int32
    assert len(data.inputs) == sum(map(len, documents)) + last + starts + ends


@given(documents)
def test_target_counts_are_those_of_whole_rows(documents):
    data = bordered([np.array(one, np.int32) for one in documents])
    scored = []
    for start, length in zip(data.starts, data.lengths, strict=True):
        scored += data.inputs[start + 1 : start + length].tolist()
    np.testing.assert_array_equal(target_counts(data, 10), np.bincount(scored, minlength=10))


def test_unigram_bits_by_hand():
    train, test = np.array([0, 0, 1, 5]), np.array([0, 0, 1, 3])  # PAD is no outcome
    probabilities = np.array([1, 2, 6]) / 9
    expected = -(np.log2(probabilities[1]) + 3 * np.log2(probabilities[2])) / 4
    assert unigram_bits(train, test) == pytest.approx(expected)
    assert unigram_bits(train, np.array([0, 2, 0, 0])) == pytest.approx(np.log2(9))  # unseen
