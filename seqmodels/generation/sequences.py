"""From prompts to symbols: one pass over the prompts, then a compiled loop of single steps."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from seqmodels.generation.symbols import NEVER, Number, check_settings, pick, widened
from seqmodels.layers import Bidirectional, Recurrent
from seqmodels.types import BORDER, PAD, Array, Carry, Key, Params


class GenState(NamedTuple):
    """Where each of B rows stands: all that its next symbols depend on.

    carry     the model's, after all that was read
    logits    of the next symbol, in float32 at least; of no meaning where done
    keys      of the rows; symbol n of a row is drawn with fold_in(its key, n)
    lengths   symbols emitted since `start`, the end symbol included
    done      the row has ended and emits PAD from here on
    log_prob  sum of log p over the emitted symbols, the end symbol included, in nats; p is the
              model's own probability, before temperature, filters and forbidden ids
    """

    carry: Carry
    logits: Float[Array, "B V"]
    keys: Key
    lengths: Int[Array, "B"]
    done: Bool[Array, "B"]
    log_prob: Float[Array, "B"]


def generate(
    model: nn.Module,
    params: Params,
    prompt: Integer[Array, "B T"],
    key: Key,
    steps: int,
    *,
    mask: Bool[Array, "B T"] | None = None,
    lengths: Integer[Array, "B"] | None = None,
    begin: int = BORDER,
    end: int = BORDER,
    temperature: Number = 1.0,
    top_k: Number | None = None,
    top_p: Number | None = None,
    forbidden: tuple[int, ...] = NEVER,
) -> tuple[GenState, Int[Array, "B {steps}"]]:
    """`start`, then `advance`: the symbols that follow each prompt, int32 [B, steps].

    Row b has `state.lengths[b]` symbols; padding stands behind them.
    """
    state = start(model, params, prompt, key, mask=mask, lengths=lengths, begin=begin)
    return advance(
        model,
        params,
        state,
        steps,
        end=end,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        forbidden=forbidden,
    )


def start(
    model: nn.Module,
    params: Params,
    prompt: Integer[Array, "B T"],
    key: Key,
    *,
    mask: Bool[Array, "B T"] | None = None,
    lengths: Integer[Array, "B"] | None = None,
    begin: int = BORDER,
) -> GenState:
    """Reads the prompts, from the model's initial carry, in one call of the model.

    prompt   read as it stands: where it starts a document, its first symbol is the border. A row
             without real steps, and every row where T = 0, reads `begin` alone.
    mask     True at real steps; may have holes, and padding on either side
    lengths  the same as a mask with the first `lengths` steps True; excludes `mask`. Neither: all
             steps are real, whatever their ids. Inside jit lengths are clipped to 0..T.
    key      one for all, of which row b takes fold_in(key, b), or one for each row, [B]. With
             the same key a row gets the same symbols in every batch and with any padding, as far
             as the model's own rounding allows.

    Raises ValueError for prompts, flags or keys that do not fit each other, for keys of kind rbg,
    which under vmap draw from the first key alone, for a model that reads backwards, and for one
    whose outputs are not [B, T, V]. Compiled once for each model, B and T.
    """
    prompt, mask = _check_prompt(prompt, mask, lengths)
    return _start(model, params, prompt, mask, _row_keys(key, len(prompt)), begin)


def advance(
    model: nn.Module,
    params: Params,
    state: GenState,
    steps: int,
    *,
    end: int = BORDER,
    temperature: Number = 1.0,
    top_k: Number | None = None,
    top_p: Number | None = None,
    forbidden: tuple[int, ...] = NEVER,
) -> tuple[GenState, Int[Array, "B {steps}"]]:
    """The next `steps` symbols of each row, int32 [B, steps]; settings as in `pick`.

    After `end`, which is emitted but not read, a row emits PAD and keeps its carry, and the loop
    stops when all rows have ended. A row whose logits are NaN, or allow no symbol, ends where it
    stands, with a `log_prob` of NaN. How the steps are split over calls changes nothing.

    Raises ValueError for steps below 0, and as `pick` does. Compiled once for each model, B,
    steps, end and forbidden; the other settings may change from call to call.
    """
    if isinstance(steps, bool) or steps < 0:
        raise ValueError(f"steps={steps} must be at least 0")
    check_settings(temperature=temperature, top_k=top_k, top_p=top_p)
    # Of one dtype each, so that 1 and 1.0 share a program.
    temperature = jnp.asarray(temperature, jnp.float32)
    top_k = None if top_k is None else jnp.asarray(top_k, jnp.int32)
    top_p = None if top_p is None else jnp.asarray(top_p, jnp.float32)
    return _advance(model, params, state, steps, end, temperature, top_k, top_p, forbidden)


@functools.partial(jax.jit, static_argnames="model")
def _start(model, params, prompt, mask, keys, begin):
    steps = prompt.shape[1]
    empty = ~jnp.any(mask, axis=1, keepdims=True) & (jnp.arange(steps) == 0)[None, :]
    prompt, mask = jnp.where(empty, begin, prompt), mask | empty
    with nn.intercept_methods(_refuse_to_look_ahead):
        logits, carry = model.apply({"params": params}, prompt, mask=mask)
    if logits.ndim != 3:
        raise ValueError(
            f"{type(model).__name__} gives outputs of shape {logits.shape}; generation needs "
            "logits [B, T, V], one symbol for each step"
        )
    last = steps - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    logits = widened(jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0])
    return GenState(
        carry=carry,
        logits=logits,
        keys=keys,
        lengths=jnp.zeros(len(prompt), jnp.int32),
        done=jnp.zeros(len(prompt), bool),
        log_prob=jnp.zeros(len(prompt), logits.dtype),
    )


@functools.partial(jax.jit, static_argnames=("model", "steps", "end", "forbidden"))
def _advance(model, params, state, steps, end, temperature, top_k, top_p, forbidden):
    settings = {"top_k": top_k, "top_p": top_p, "forbidden": forbidden}

    @jax.vmap
    def draw(key, number, logits):
        symbol = pick(jax.random.fold_in(key, number), logits, temperature, **settings)
        log_p = jax.nn.log_softmax(logits)[symbol]
        impossible = jnp.isnan(log_p)
        if PAD in forbidden:  # then it says that no symbol was possible
            impossible |= symbol == PAD
        return symbol, jnp.where(impossible, jnp.nan, log_p), impossible

    def body(loop):
        i, old, symbols = loop
        symbol, log_p, impossible = draw(old.keys, old.lengths, old.logits)
        emits = ~(old.done | impossible)
        symbol = jnp.where(emits, symbol, PAD)
        reads = emits & (symbol != end)
        logits, carry = model.apply(
            {"params": params}, symbol[:, None], old.carry, mask=reads[:, None]
        )
        new = GenState(
            carry=carry,
            logits=widened(logits[:, 0]),
            keys=old.keys,
            lengths=old.lengths + emits.astype(jnp.int32),
            done=~reads,
            log_prob=old.log_prob + jnp.where(old.done, 0, log_p),
        )
        symbols = jax.lax.dynamic_update_slice(symbols, symbol[:, None], (0, i))
        return i + 1, new, symbols

    def running(loop):
        i, state, _ = loop
        return (i < steps) & ~jnp.all(state.done)

    symbols = jnp.full((len(state.done), steps), PAD, jnp.int32)
    if steps == 0:  # a body that writes to no column cannot be traced
        return state, symbols
    _, state, symbols = jax.lax.while_loop(running, body, (jnp.int32(0), state, symbols))
    return state, symbols


def _refuse_to_look_ahead(call, args, kwargs, context):
    """A Flax interceptor: ValueError at a layer whose outputs depend on later steps."""
    layer = context.module
    if isinstance(layer, Bidirectional) or (isinstance(layer, Recurrent) and layer.reverse):
        name = "/".join(layer.path) or type(layer).__name__
        raise ValueError(
            f"layer {name} reads backwards, from symbols still to be generated; "
            "build the model with bidirectional=False and reverse=False"
        )
    return call(*args, **kwargs)


def _check_prompt(prompt, mask, lengths):
    """(prompt int32 [B, T], mask [B, T]) with T at least 1."""
    prompt = jnp.asarray(prompt)
    if prompt.ndim != 2 or not jnp.issubdtype(prompt.dtype, jnp.integer):
        raise ValueError(f"prompt is {prompt.dtype} {prompt.shape}; expected integers [B, T]")
    rows, steps = prompt.shape
    if lengths is not None:
        if mask is not None:
            raise ValueError("give mask or lengths, not both")
        if lengths.shape != (rows,):
            raise ValueError(f"lengths has shape {lengths.shape}; expected one a row, [{rows}]")
        if not isinstance(lengths, jax.core.Tracer):
            for row, length in enumerate(np.asarray(lengths)):
                if not 0 <= length <= steps:
                    raise ValueError(f"lengths[{row}]={length} is outside 0..{steps}, T of prompt")
        mask = jnp.arange(steps)[None, :] < jnp.asarray(lengths).astype(int)[:, None]
    if mask is None:
        mask = jnp.ones((rows, steps), bool)
    if mask.shape != (rows, steps) or mask.dtype != bool:
        raise ValueError(f"mask is {mask.dtype} {mask.shape}; expected bool [{rows}, {steps}]")
    if steps == 0:
        prompt, mask = jnp.zeros((rows, 1), int), jnp.zeros((rows, 1), bool)
    return prompt.astype(jnp.int32), jnp.asarray(mask)


def _row_keys(key, rows):
    """One key for each row, [B]."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key is {key.dtype} {key.shape}; expected a key of jax.random.key")
    kind = str(jax.random.key_impl(key))
    if "rbg" in kind:
        raise ValueError(
            f"key is of kind {kind}, with which a row would depend on its batch; "
            "use jax.random.key(seed, impl='threefry2x32')"
        )
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(rows))
    if key.shape != (rows,):
        raise ValueError(f"key has shape {key.shape}; expected one key, or one a row, [{rows}]")
    return key
