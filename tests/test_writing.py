"""Text as it comes: whole characters, the same text in any pieces, and a border that ends it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table import module_params
from test_generation import generated

from experiments.writing import Written, stream_text
from seqmodels.cells import GRU
from seqmodels.data.tokenizers import BORDER, ByteTokenizer, CharTokenizer, WordTokenizer
from seqmodels.generation import NEVER
from seqmodels.layers import Embed, Stack
from seqmodels.models import SequenceLabeller

KEY = jax.random.key(0)
BYTES = ByteTokenizer()
LINE = "naïve €5 😀"


class Recites(nn.Module):
    """Writes one byte string, one symbol a step from where the prompt stops, then the border."""

    text: bytes

    @nn.compact
    def __call__(self, ids, carry=None, *, mask=None, reset=None):
        line = np.append(BYTES.encode(self.text), BORDER)
        carry = {"at": jnp.full(len(ids), -1.0)} if carry is None else carry
        steps = jnp.ones(ids.shape) if mask is None else mask.astype(jnp.float32)
        at = carry["at"][:, None] + jnp.cumsum(steps, axis=1)  # the border before it counts -1 + 1
        following = jnp.take(line, at.astype(jnp.int32), mode="clip")
        return 50 * jax.nn.one_hot(following, BYTES.size), {"at": at[:, -1]}


def written(model, params, tokenizer, prompt="", length=40, temperature=1.0, **filters):
    pieces = []
    settings = {"top_k": None, "top_p": None, **filters}
    result = stream_text(
        model, params, tokenizer, prompt, KEY, length, temperature, **settings, write=pieces.append
    )
    return pieces, result


def test_characters_come_whole_and_at_once():
    pieces, result = written(Recites(LINE.encode()), {}, BYTES, prompt="naï")
    assert pieces == [*LINE], "one character a piece, however many bytes it has"
    rest = len(LINE.encode()) - len("naï".encode())
    assert result[:2] == Written(rest + 1, True, 0)[:2] and abs(result.log_prob) < 1e-3


def test_each_piece_is_written_before_the_next_is_computed():
    class Enough(Exception):
        pass

    pieces = []

    def write(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            raise Enough

    with pytest.raises(Enough):
        stream_text(Recites(LINE.encode()), {}, BYTES, "", KEY, 10**9, 1.0, None, None, write)
    assert pieces == [*LINE[:3]]


def test_a_length_that_cuts_a_character():
    pieces, result = written(Recites(LINE.encode()), {}, BYTES, prompt="na", length=1)
    assert pieces == ["n", "a", "\ufffd"] and result[:2] == (1, False)
    assert written(Recites(LINE.encode()), {}, BYTES, "na", length=0)[0] == ["n", "a"]
    with pytest.raises(ValueError, match="length=-1 must be at least 0"):
        written(Recites(LINE.encode()), {}, BYTES, length=-1)


TOKENIZERS = {
    "byte": BYTES,
    "char": CharTokenizer.fit([LINE]),
    "word": WordTokenizer.fit(["one two three, four!"]),
}


def trained(tokenizer):
    model = SequenceLabeller(Stack((GRU(8),)), tokenizer.size, Embed(tokenizer.size, 4))
    return model, module_params(model, np.ones((1, 1), np.int32), scale=1.5)["params"]


@pytest.mark.parametrize(
    "kind, prompt", [("byte", ""), ("char", "5 naïve"), ("word", "One two, five")]
)
def test_pieces_are_what_generate_gives_at_once(kind, prompt):
    tokenizer = TOKENIZERS[kind]
    model, params = trained(tokenizer)
    settings = {"temperature": 1.3, "top_k": 30, "top_p": 0.95}
    pieces, result = written(model, params, tokenizer, prompt, 25, **settings)
    ids = np.concatenate([[BORDER], tokenizer.encode(prompt)]).astype(np.int32)
    state, following = generated(model, params, ids[None, :], KEY, 25, **settings)
    following = np.asarray(following)[0, : int(state.lengths[0])]
    assert "".join(pieces) == tokenizer.decode(np.concatenate([ids, following]))
    assert all(pieces) and result.symbols == len(following)
    np.testing.assert_allclose(result.log_prob, state.log_prob[0], rtol=1e-5)


def test_a_text_without_borders_begins_with_its_prompt_and_has_no_end():
    """The border, untrained there, is neither read nor written."""
    stream = ByteTokenizer(borders=False)
    model, params = trained(stream)
    params["head"]["bias"][BORDER] += 50.0
    assert written(model, params, BYTES, "ab", 25)[1].ended
    pieces, result = written(model, params, stream, "ab", 25, temperature=0.0)
    assert result.symbols == 25 and not result.ended
    read = BYTES.encode("ab")[None, :]
    state, following = generated(
        model, params, read, KEY, 25, temperature=0.0, forbidden=(*NEVER, BORDER)
    )
    assert "".join(pieces) == stream.decode(np.concatenate([read[0], following[0]]))
    with pytest.raises(ValueError, match="^prompt='' is empty: .* without borders"):
        written(model, params, stream)


def test_what_does_not_fit_is_refused():
    model, params = trained(TOKENIZERS["char"])
    with pytest.raises(ValueError, match="model has 12 outputs and the tokenizer 259 symbols"):
        written(model, params, BYTES)
    with pytest.raises(ValueError, match="temperature=-1 must be a finite number"):
        written(model, params, TOKENIZERS["char"], temperature=-1)
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), params)
    with pytest.raises(ValueError, match="logits are not finite after 0 symbols"):
        written(model, broken, TOKENIZERS["char"])
