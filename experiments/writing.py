"""Text from a trained language model, shown while it is written."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from seqmodels.data.tokenizers import BORDER, Tokenizer
from seqmodels.generation import NEVER, GenState, advance, start
from seqmodels.generation.symbols import check_settings
from seqmodels.types import Key, Params


class Written(NamedTuple):
    """What came after a prompt.

    symbols   how many were generated, the border at the end included
    ended     the model ended the document, before the length was used up or with its last symbol
    log_prob  sum over these symbols of log p under the unfiltered model, in nats
    """

    symbols: int
    ended: bool
    log_prob: float


def stream_text(
    model: nn.Module,
    params: Params,
    tokenizer: Tokenizer,
    prompt: str,
    key: Key,
    length: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    write: Callable[[str], object],
) -> Written:
    """Writes a document that begins with `prompt`, up to `length` symbols after it.

    `write` gets the prompt, as the tokenizer reads it, and then the rest, piece by piece as it
    comes: whole characters only, also where one is made of several symbols. The model reads a
    border, then the prompt, which may be empty; its next border ends the document. Where its texts
    had no borders it reads the prompt alone, which may not be empty, and writes on without end.

    temperature, top_k, top_p  as in `generation.pick`

    Raises ValueError for settings out of range or no prompt where one is needed, for a model whose
    outputs are not the tokenizer's symbols, and for one that is not a language model or whose
    logits are not finite.
    """
    if length < 0:
        raise ValueError(f"length={length} must be at least 0 symbols")
    check_settings(temperature=temperature, top_k=top_k, top_p=top_p)  # before anything is written
    before = [BORDER] if tokenizer.borders else []
    never = NEVER if tokenizer.borders else (*NEVER, BORDER)
    read = np.concatenate([before, tokenizer.encode(prompt)]).astype(np.int32)
    if not len(read):
        raise ValueError(
            f"prompt={prompt!r} is empty: this model learnt from a stream without borders, and "
            "has no symbol to begin with; give it some text to go on from"
        )
    state = start(model, params, read[None, :], key)
    outputs = state.logits.shape[-1]
    if outputs != tokenizer.size:
        raise ValueError(
            f"the model has {outputs} outputs and the tokenizer {tokenizer.size} symbols; "
            "a model writes with the tokenizer it was trained with"
        )

    def symbols() -> Iterator[int]:
        nonlocal state
        yield from read.tolist()
        for _ in range(length):
            # One at a time: a call costs a millisecond, and the reader sees each symbol at once.
            state, ids = advance(
                model,
                params,
                state,
                1,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                forbidden=never,
            )
            _check_finite(state)
            yield int(ids[0, 0])
            if state.done[0]:
                return

    for piece in tokenizer.decode_stream(symbols()):
        write(piece)
    return Written(int(state.lengths[0]), bool(state.done[0]), float(state.log_prob[0]))


def _check_finite(state: GenState) -> None:
    if np.isnan(state.log_prob[0]):
        raise ValueError(
            f"the model's logits are not finite after {state.lengths[0]} symbols: it diverged in "
            "training, or read a symbol that it does not have"
        )
