"""Readouts, embeddings, dropout and whole models: what a row gets depends on that row alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from table import INPUTS, KEY, apply, assert_close, jit, module_params

from seqmodels import readout
from seqmodels.cells import GRU, LSTM, RNN
from seqmodels.layers import Embed, Stack
from seqmodels.models import SequenceClassifier, SequenceLabeller
from seqmodels.readout import READOUTS

BATCH, STEPS, WIDTH = 3, 5, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, STEPS, INPUTS)).astype(np.float32)
IDS = RNG.integers(1, 9, size=(BATCH, STEPS)).astype(np.int32)
LENGTHS = np.array([2, 5, 0])
MASK = np.arange(STEPS) < LENGTHS[:, None]
RESET = np.array([[False, True, False, False, True]] * 3)
DEEP = Stack((GRU(WIDTH), LSTM(WIDTH)), bidirectional=True)
BOTH_WAYS = Stack((GRU(WIDTH),), bidirectional=True)
every_readout = pytest.mark.parametrize("name", READOUTS)


# Readouts ---------------------------------------------------------------------------------------


def test_values_of_the_readouts():
    y = np.float32([[[1, -5], [3, -4], [0, 0]], [[-1, 2], [-2, 8], [-6, 5]], [[0, 0]] * 3])
    final = np.float32([[3, -4], [-6, 5], [7, 7]])
    mask = np.array([[True, True, False], [True, True, True], [False] * 3])
    expected = {
        "last": [[3, -4], [-6, 5], [0, 0]],
        "first": [[1, -5], [-1, 2], [0, 0]],
        "mean": [[2, -4.5], [-3, 5], [0, 0]],
        "max": [[3, -4], [-1, 8], [0, 0]],  # -4, not the 0 of the padding
    }
    assert set(expected) == set(READOUTS)
    for name, values in expected.items():
        np.testing.assert_allclose(READOUTS[name](y, final, mask), values, rtol=1e-6)
    holes = np.array([[False, True, False], [True, False, True], [False, False, True]])
    np.testing.assert_array_equal(readout.first(y, final, holes), [[3, -4], [-1, 2], [0, 0]])


@every_readout
@pytest.mark.parametrize("steps", [0, 4])
def test_D12_rows_without_real_steps_read_zero_with_a_finite_gradient(name, steps):
    y = np.zeros((2, steps, 3), np.float32)
    final, mask = np.full((2, 3), 9.0, np.float32), np.zeros((2, steps), bool)
    if steps:
        y[0], mask[0] = 2.0, True

    def norm(y, final):
        out = READOUTS[name](y, final, mask)
        return jnp.sum(jnp.sum(out**2, axis=1)), out

    (_, out), slopes = jax.value_and_grad(norm, (0, 1), has_aux=True)(y, final)
    assert not np.any(out[1]) and (not steps or np.all(out[0] > 0))
    for slope in slopes:
        assert np.all(np.isfinite(slope)) and not np.any(np.asarray(slope)[1])


def test_C06_the_mean_counts_in_integers():
    y, mask = jnp.ones((1, 5000, 1), jnp.bfloat16), np.ones((1, 5000), bool)
    assert float(readout.mean(y, y[:, 0], mask)[0, 0]) == 1.0


# Embeddings -------------------------------------------------------------------------------------


def test_embedding_of_padding_is_zero_and_learns_nothing():
    embed = Embed(9, 3)
    variables = module_params(embed, IDS)
    ids = np.int32([[0, 1, 0, 8]])
    x = apply(embed)(variables, ids)
    assert (
        not np.any(x[0, [0, 2]]) if isinstance(x, np.ndarray) else not np.any(np.asarray(x)[0, ::2])
    )
    table = variables["params"]["embedding"]
    np.testing.assert_array_equal(np.asarray(x)[0, 1::2], table[[1, 8]])
    slope = jax.grad(lambda v: jnp.sum(embed.apply(v, ids)))(variables)["params"]["embedding"]
    np.testing.assert_array_equal(np.any(np.asarray(slope) != 0, axis=1), np.isin(range(9), (1, 8)))
    everything = Embed(9, 3, padding_id=None)
    np.testing.assert_array_equal(apply(everything)(variables, ids)[0], table[ids[0]])


def test_ids_outside_the_vocabulary_show():
    embed = Embed(9, 3)
    variables = module_params(embed, IDS)
    x = np.asarray(apply(embed)(variables, np.int32([[9, -1, 3, -9, 1000]])))[0]
    assert np.all(np.isnan(x[[0, 1, 3, 4]])) and np.all(np.isfinite(x[2]))


def test_A04_a_real_token_0_is_a_step():
    """What is padding is the mask's to say: id 0 within the length moves the state."""
    model = SequenceClassifier(Stack((GRU(WIDTH),)), 2, Embed(9, 3))
    ids = np.int32([[5, 0, 0, 6]] * 2)
    variables = module_params(model, ids)
    mask = np.arange(4) < np.array([[1], [3]])
    (short, long), _ = apply(model)(variables, ids, mask=mask)
    assert np.abs(short - long).max() > 1e-3


# Dropout ----------------------------------------------------------------------------------------


def test_dropout_between_layers_only():
    """Two running sums on an impulse: the first shows ones, the second sums what gets through."""
    stack = Stack((probes.RunningSum(40),) * 2, dropout=0.5)
    x = np.zeros((2, 20, 40), np.float32)
    x[:, 0] = 1

    def passed(seed):
        y, _ = apply(stack)({}, x, train=True, rngs={"dropout": jax.random.key(seed)})
        return np.diff(np.asarray(y), axis=1, prepend=0)

    first, other = passed(0), passed(1)
    # An output that was itself dropped would step by something else.
    assert set(np.unique(first)) == {0.0, 2.0}
    assert abs(first.mean() - 1) < 0.1
    for a, b in ((first[0], first[1]), (first[:, 1], first[:, 2]), (first, other)):
        assert 0.3 < np.mean(a != b) < 0.7, "a mask of its own for each row, step and call"
    np.testing.assert_array_equal(passed(0), first)

    quiet, _ = apply(stack)({}, x)
    np.testing.assert_array_equal(quiet, np.broadcast_to(np.arange(1, 21)[:, None], x.shape))
    with pytest.raises(Exception, match="dropout"):
        stack.apply({}, x, train=True)


@pytest.mark.parametrize("rate", [True, False, -0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_that_is_no_probability_is_refused(rate):
    stack = Stack((GRU(3),) * 2)
    for module in (
        Stack((GRU(3),) * 2, dropout=rate),
        SequenceClassifier(stack, 2, dropout=rate),
        SequenceLabeller(stack, 2, dropout=rate),
    ):
        with pytest.raises(ValueError, match=f"dropout={rate}"):
            module.init(jax.random.key(0), X)


def test_E05_a_dropout_that_nothing_applies_is_refused():
    with pytest.raises(ValueError, match=r"dropout=0\.9 acts between layers, and there is one"):
        Stack((GRU(3),), dropout=0.9).init(jax.random.key(0), X)


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceLabeller])
def test_dropout_before_the_head(kind):
    model = kind(Stack((GRU(WIDTH),)), 2, dropout=0.5)
    variables = module_params(model, X)

    def run(seed):
        return apply(model)(variables, X, train=True, rngs={"dropout": jax.random.key(seed)})

    quiet = apply(model)(variables, X)
    assert np.abs(run(0)[0] - run(1)[0]).max() > 1e-3
    assert_close(run(0)[1], quiet[1], 0)  # the carry is not touched
    np.testing.assert_array_equal(run(0)[0], run(0)[0])


# Models -----------------------------------------------------------------------------------------


@every_readout
def test_classifier_is_embedding_stack_readout_head(name):
    stack = DEEP if name == "last" else BOTH_WAYS
    model = SequenceClassifier(stack, 3, Embed(9, INPUTS), readout=name)
    variables = module_params(model, IDS)
    params = variables["params"]
    assert set(params) == {"embed", "stack", "head"}
    flags = {"mask": MASK, "reset": RESET}
    outputs, carry = apply(model)(variables, IDS, **flags)
    x = apply(model.embed)({"params": params["embed"]}, IDS)
    y, expected = apply(stack)({"params": params["stack"]}, x, **flags)
    top = expected[f"layer_{len(stack.cells) - 1}"]
    final = np.concatenate([top["forward"].h, top["backward"].h], axis=-1)
    vector = READOUTS[name](y, final, MASK)
    by_hand = vector @ params["head"]["kernel"] + params["head"]["bias"][None]
    assert_close((outputs, carry), (by_hand, expected), 1e-5)
    np.testing.assert_allclose(outputs[2], params["head"]["bias"], atol=1e-6)  # no real step


def test_labeller_is_embedding_stack_head():
    model = SequenceLabeller(DEEP, 3, Embed(9, INPUTS))
    variables = module_params(model, IDS)
    params, flags = variables["params"], {"mask": MASK, "reset": RESET}
    result = apply(model)(variables, IDS, **flags)
    x = apply(model.embed)({"params": params["embed"]}, IDS)
    y, carry = apply(DEEP)({"params": params["stack"]}, x, **flags)
    assert not np.any(np.asarray(y)[~MASK])  # the head's bias alone stands there
    bias = np.broadcast_to(params["head"]["bias"], (BATCH, STEPS, 3))
    assert_close(result, (y @ params["head"]["kernel"] + bias, carry), 1e-5)


def test_unknown_readout_is_refused():
    with pytest.raises(ValueError, match="readout='median' is not one of.*'last'"):
        SequenceClassifier(DEEP, 3, readout="median").init(jax.random.key(0), X)


@every_readout
def test_A08_padding_does_not_move_the_answer(name):
    """The same sentence padded to T = 10 and T = 400; a padding id that exists must not matter."""
    model = SequenceClassifier(BOTH_WAYS, 3, Embed(9, INPUTS), readout=name)
    variables = module_params(model, IDS)
    answers = []
    for steps, pad in ((10, 0), (400, 7)):
        ids = np.full((1, steps), pad, np.int32)
        ids[0, :5] = IDS[0]
        answer, _ = apply(model)(variables, ids, mask=np.arange(steps)[None] < 5)
        answers.append(answer)
    np.testing.assert_allclose(*answers, atol=1e-6)


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceLabeller])
def test_D10_a_row_alone_or_in_a_batch(kind):
    model = kind(DEEP, 3)
    x = RNG.normal(size=(8, STEPS, INPUTS)).astype(np.float32)
    mask = np.arange(STEPS) < np.array([5, 1, 0, 3, 2, 5, 4, 1])[:, None]
    variables = module_params(model, x)
    together = jax.device_get(apply(model)(variables, x, mask=mask))
    for row in range(8):
        alone = apply(model)(variables, x[[row]], mask=mask[[row]])
        picked = jax.tree.map(lambda leaf, row=row: leaf[[row]], together)
        assert_close(alone, picked, 1e-5)


@pytest.mark.parametrize(
    "model",
    [SequenceLabeller(DEEP, 2), SequenceClassifier(DEEP, 2)],
    ids=["labeller", "classifier"],
)
def test_F06_rows_do_not_speak_to_each_other(model):
    """The Jacobian of one row's answer for another row's input is exactly zero."""
    variables = module_params(model, X)
    mask = np.arange(STEPS) < np.array([[2], [5], [3]])
    # Outputs of one row, summed: three backward passes give the whole table of rows by rows.
    answers = jit(
        jax.jacrev(lambda x: model.apply(variables, x, mask=mask)[0].reshape(3, -1).sum(1))
    )
    reached = np.any(np.asarray(answers(X)) != 0, axis=(2, 3))
    np.testing.assert_array_equal(reached, np.eye(3, dtype=bool))


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceLabeller])
def test_models_without_steps(kind):
    for name in READOUTS if kind is SequenceClassifier else [None]:
        options = {"readout": name} if name else {}
        model = kind(Stack((RNN(WIDTH),)), 2, **options)
        variables = module_params(model, X)
        outputs, _ = apply(model)(variables, X[:, :0], mask=MASK[:, :0])
        assert outputs.shape == ((BATCH, 2) if name else (BATCH, 0, 2))
        assert np.all(np.isfinite(outputs))


def test_models_carry_on_where_they_stopped():
    """Chunks with the carry handed over, and a reset in the second one."""
    model = SequenceLabeller(Stack((GRU(WIDTH), LSTM(WIDTH))), 2)
    variables = module_params(model, X)
    reset = np.zeros((BATCH, STEPS), bool)
    reset[1, 3] = True
    whole, final = apply(model)(variables, X, mask=MASK, reset=reset)
    carry, outputs = None, []
    for part in (slice(0, 2), slice(2, 5)):
        flags = {"mask": MASK[:, part], "reset": reset[:, part]}
        y, carry = apply(model)(variables, X[:, part], carry, **flags)
        outputs.append(y)
    assert_close((np.concatenate(outputs, axis=1), carry), (whole, final), 1e-6)


@pytest.mark.parametrize("tied", [False, True])
def test_language_model_starts_by_knowing_nothing(tied):
    """Its loss is that of answers all alike, also where the output shares the embedding."""
    vocabulary, width = 100, 64
    model = SequenceLabeller(Stack((LSTM(width),)), vocabulary, Embed(vocabulary, width), tied=tied)
    ids = np.random.default_rng(1).integers(1, vocabulary, size=(4, 50)).astype(np.int32)
    variables = jit(model.init)(KEY, ids)
    logits, _ = apply(model)(variables, ids)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]).mean()
    assert abs(float(loss) - np.log(vocabulary)) < 0.1
