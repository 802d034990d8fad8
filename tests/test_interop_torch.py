"""Weights and numbers of torch.nn.RNN, LSTM and GRU, against PyTorch itself."""

import warnings

import jax
import numpy as np
import pytest
from table import assert_close, jit

from seqmodels.cells import GRU, LSTM, MGU, RNN, LearnedCarry
from seqmodels.initializers import uniform_by_width
from seqmodels.layers import Stack, stack_carry, unstack_carry

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install torch==2.13.0, then '.[interop]'"
)
from seqmodels.interop.torch import from_torch, to_torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
    pytest.mark.usefixtures("standard_promotion"),
]
KINDS = ("RNN", "LSTM", "GRU")


def module_of(rng, kind, inputs=None, **given):
    """A module of random settings, every number of it random."""
    settings = {
        "num_layers": int(rng.integers(1, 4)),
        "bidirectional": bool(rng.integers(2)),
        "bias": bool(rng.integers(4)),
        "batch_first": bool(rng.integers(2)),
        "dropout": float(rng.choice([0.0, 0.3])),
    }
    width = int(rng.integers(2, 9))
    if kind == "RNN":
        settings["nonlinearity"] = str(rng.choice(["tanh", "relu"]))
    if kind == "LSTM" and rng.integers(2):
        settings["proj_size"] = int(rng.integers(1, width))
    module = getattr(torch.nn, kind)(
        inputs or int(rng.integers(1, 6)), width, **(settings | given)
    ).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            numbers = rng.normal(size=parameter.shape) * 0.5
            parameter.copy_(torch.from_numpy(numbers.astype(np.float32)))
    return module


def time_axis(module):
    return 1 if module.batch_first else 0


def run_torch(module, x, lengths, start, cotangents):
    """(y, h_n, c_n) as a dict, and the gradients of their sum weighted by `cotangents`."""
    x = torch.tensor(x, requires_grad=True)
    start = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, torch.from_numpy(lengths), batch_first=module.batch_first, enforce_sorted=False
    )
    both = tuple(start.values())
    y, final = module(packed, both if len(both) == 2 else both[0])
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(
        y, batch_first=module.batch_first, total_length=x.shape[time_axis(module)]
    )
    out = dict(zip(("y", *start), (y, *(final if len(both) == 2 else (final,))), strict=True))
    loss = sum((out[name] * torch.from_numpy(cotangents[name])).sum() for name in out)
    loss.backward()
    slopes = {name: p.grad.numpy() for name, p in module.named_parameters()}
    slopes["x"] = x.grad.numpy()
    slopes |= {name: array.grad.numpy() for name, array in start.items()}
    return {name: array.detach().numpy() for name, array in out.items()}, slopes


def run_ours(layer, params, x, lengths, start, cotangents):
    """The same of ours; gradients by PyTorch's names."""

    def forward(params, x, start):
        carry = unstack_carry(layer, start)
        y, carry = layer.apply({"params": params}, x, carry, lengths=lengths)
        return {"y": y, **stack_carry(carry)}

    @jit
    def slopes(*arguments):
        out, pullback = jax.vjp(forward, *arguments)
        return out, pullback(cotangents)

    out, (d_params, dx, d_start) = slopes(params, x, start)
    named = {name: tensor.numpy() for name, tensor in to_torch(layer, d_params).items()}
    for name in named:
        if "bias_hh" in name:  # its gradient is the sum's, but for the GRU's candidate
            candidate, named[name] = named[name], named[name.replace("_hh", "_ih")].copy()
            if isinstance(layer.cells[0], GRU):
                third = layer.cells[0].features
                named[name][-third:] = candidate[-third:]
    return out, named | {"x": dx} | d_start


def compare(seed):
    rng = np.random.default_rng(seed)
    module = module_of(rng, KINDS[seed % 3])
    layer, params = from_torch(module)
    batch, steps = int(rng.integers(1, 5)), int(rng.integers(1, 10))
    shape = (batch, steps) if module.batch_first else (steps, batch)
    x = rng.normal(size=(*shape, module.input_size)).astype(np.float32)
    lengths = rng.integers(1, steps + 1, size=batch)
    ends = module.num_layers * (1 + module.bidirectional)
    widths = {"h": getattr(module, "proj_size", 0) or module.hidden_size}
    if isinstance(module, torch.nn.LSTM):
        widths["c"] = module.hidden_size
    start = {
        name: rng.normal(size=(ends, batch, width)).astype(np.float32)
        for name, width in widths.items()
    }
    width = widths["h"] * (1 + module.bidirectional)
    outputs = {"y": np.empty((*shape, width)), **start}
    cotangents = {
        name: rng.normal(size=array.shape).astype(np.float32) for name, array in outputs.items()
    }
    theirs = run_torch(module, x, lengths, start, cotangents)
    ours = run_ours(layer, params, x, lengths, start, cotangents)
    assert_close(ours[0], theirs[0], 1e-5)
    assert_close(ours[1], theirs[1], 1e-4)

    for name, tensor in to_torch(layer, params).items():
        if "weight" in name:
            np.testing.assert_array_equal(tensor, module.state_dict()[name].numpy(), name)
    twin = getattr(torch.nn, KINDS[seed % 3])(**settings_of(module)).eval()
    twin.load_state_dict(to_torch(layer, params))
    back, again = from_torch(twin)
    assert back == layer
    jax.tree.map(np.testing.assert_array_equal, params, again)

    def count(arrays):
        return sum(np.size(array) for array in arrays)

    pairs = count(p.detach().numpy() for n, p in module.named_parameters() if "bias_hh" in n)
    kept = count(jax.tree.leaves(params)) - count(p.detach().numpy() for p in module.parameters())
    own = pairs // 3 if isinstance(module, torch.nn.GRU) else 0
    assert kept == own - pairs


def settings_of(module):
    names = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional")
    settings = {name: getattr(module, name) for name in names} | {"dropout": module.dropout}
    if isinstance(module, torch.nn.RNN):
        settings["nonlinearity"] = module.nonlinearity
    if isinstance(module, torch.nn.LSTM):
        settings["proj_size"] = module.proj_size
    return settings


@pytest.mark.parametrize("seed", range(3))
def test_numbers_and_gradients_equal_torch(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 210))
def test_many_numbers_and_gradients_equal_torch(seed):
    compare(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_alone_says_the_rest(kind):
    """Also inside a larger model, and without a batch axis."""
    rng = np.random.default_rng(4)
    module = module_of(rng, kind, num_layers=2, batch_first=True, dropout=0.0)
    larger = torch.nn.ModuleDict({"rnn": module, "head": torch.nn.Linear(2, 2)})
    activation = getattr(module, "nonlinearity", None)
    layer, params = from_torch(larger.state_dict(), prefix="rnn.", nonlinearity=activation)
    assert (layer, jax.tree.structure(params)) == (
        from_torch(module)[0],
        jax.tree.structure(from_torch(module)[1]),
    )
    x = rng.normal(size=(4, module.input_size)).astype(np.float32)
    y, carry = jit(layer.apply)({"params": params}, x)
    with torch.no_grad():
        expected, final = module(torch.from_numpy(x))
    h_n = final[0] if isinstance(final, tuple) else final
    assert_close((y, stack_carry(carry)["h"]), (expected.numpy(), h_n.numpy()), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_any_dtype_survive(dtype):
    module = module_of(np.random.default_rng(0), "LSTM").to(dtype)
    _, params = from_torch(module)
    kernel = params["layer_0"]
    kernel = kernel.get("forward", kernel)["input"]["kernel"]
    assert str(kernel.dtype) == str(dtype).removeprefix("torch.")
    expected = module.weight_ih_l0.detach().to(torch.float64).numpy().T
    np.testing.assert_array_equal(kernel.astype(np.float64), expected)


def test_bfloat16_goes_back_bit_for_bit():
    module = torch.nn.GRU(3, 4).to(torch.bfloat16)
    state = to_torch(*from_torch(module))
    assert state["weight_ih_l0"].dtype == torch.bfloat16
    torch.testing.assert_close(state["weight_ih_l0"], module.weight_ih_l0, rtol=0, atol=0)


def test_the_same_weights_in_other_wrapping():
    """Compiled and scripted modules, tensors as parts of larger ones, arrays of other libraries."""
    module = torch.nn.RNN(3, 4, nonlinearity="relu", batch_first=True)
    expected = from_torch(module)
    state, relu = module.state_dict(), {"nonlinearity": "relu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        wrapped = from_torch(torch.compile(module)), from_torch(torch.jit.script(module))
    parallel = torch.nn.DataParallel(module).state_dict()
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    read = from_torch(parallel, prefix="module.", **relu), from_torch(arrays, **relu)
    for layer, params in (*wrapped, *read):
        assert layer.cells == expected[0].cells
        jax.tree.map(np.testing.assert_array_equal, params, expected[1])


def test_new_weights_start_as_in_torch():
    layer, params = from_torch(torch.nn.LSTM(3, 16))
    fresh = layer.init(jax.random.key(0), np.zeros((2, 1, 3), np.float32))["params"]["layer_0"]
    for leaf in jax.tree.leaves(fresh):
        assert 0.2 < np.abs(leaf).max() <= 0.25, "U(-1/sqrt(H), 1/sqrt(H)), and no gate bias"


def test_weights_trained_here_go_to_torch():
    stack = Stack((GRU(5), GRU(5)), bidirectional=True)
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    shapes = jax.eval_shape(stack.init, jax.random.key(0), x)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    module = torch.nn.GRU(3, 5, num_layers=2, bidirectional=True, batch_first=True)
    module.load_state_dict(to_torch(stack, params))
    with torch.no_grad():
        y, _ = module(torch.from_numpy(x))
    assert_close(jit(stack.apply)({"params": params}, x)[0], y.numpy(), 1e-5)


@pytest.mark.parametrize(
    "cells, settings, words",
    [
        ((LSTM(4, peepholes=True),), {}, r"LSTM\(peepholes=True\)"),
        ((LSTM(4, heads=2),), {}, r"LSTM\(heads=2\)"),
        ((LSTM(4, cell_clip=1.0),), {}, r"LSTM\(cell_clip=1.0\)"),
        ((GRU(4, reset_after=False),), {}, r"GRU\(reset_after=False\)"),
        ((GRU(4, z_keeps=False),), {}, r"GRU\(z_keeps=False\)"),
        ((RNN(4, layer_norm=True),), {}, r"RNN\(layer_norm=True\)"),
        ((RNN(4, hidden_dropout=0.1),), {}, r"RNN\(hidden_dropout=0.1\)"),
        ((MGU(4),), {}, "MGU"),
        ((LearnedCarry(RNN(4)),), {}, "LearnedCarry"),
        ((RNN(4), RNN(5)), {}, "all alike"),
        ((RNN(4),), {"bidirectional": True, "merge": "sum"}, r"Stack\(merge='sum'\)"),
        ((RNN(4),) * 2, {"dropout": 0.1, "dropout_per_step": False}, "dropout_per_step=False"),
    ],
)
def test_what_torch_cannot_express_is_refused(cells, settings, words):
    with pytest.raises(ValueError, match=words):
        to_torch(Stack(cells, **settings), {})


def test_initial_weights_are_no_reason_to_refuse():
    stack = Stack((RNN(4, input_init=uniform_by_width),))
    params = stack.init(jax.random.key(0), np.zeros((1, 1, 2), np.float32))["params"]
    assert set(to_torch(stack, params)) == {
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
    }  # fmt: skip


def without(name):
    state = torch.nn.LSTM(3, 4).state_dict()
    del state[name]
    return state


def reshaped(name, *shape):
    return torch.nn.GRU(3, 4).state_dict() | {name: torch.zeros(*shape)}


@pytest.mark.parametrize(
    "source, settings, words",
    [
        (torch.nn.Linear(2, 2), {}, "Linear is not one of"),
        (type("Own", (torch.nn.GRU,), {})(2, 2), {}, "Own is not one of .* itself; give its part"),
        (torch.nn.GRU(2, 2), {"prefix": "rnn."}, "prefix and nonlinearity are for a state_dict"),
        (torch.nn.RNN(2, 2), {"nonlinearity": "relu"}, "prefix and nonlinearity are for a state"),
        ([torch.zeros(2)], {}, "list is neither a module nor a state_dict"),
        (torch.nn.LSTMCell(2, 2), {}, "LSTMCell is not one of"),
        (without("bias_hh_l0"), {}, "bias_hh_l0 is missing"),
        (without("weight_hh_l0"), {}, "weight_hh_l0 is not among"),
        (torch.nn.LSTM(3, 4).state_dict() | {"head": torch.zeros(1)}, {}, "head belongs to no"),
        (torch.nn.RNN(3, 4).state_dict(), {}, "nonlinearity; give it"),
        (torch.nn.GRU(3, 4).state_dict(), {"nonlinearity": "relu"}, "weights of GRU"),
        (torch.nn.LSTM(3, 4).state_dict(), {"prefix": "rnn."}, "is a prefix missing"),
        (reshaped("bias_ih_l0", 11), {}, "bias_ih_l0 has shape"),
        (
            reshaped("weight_ih_l0", 11, 3),
            {},
            r"weight_ih_l0 has shape \(11, 3\); expected \(12, 3\)",
        ),
        (reshaped("weight_hh_l0", 8, 4), {}, r"weight_hh_l0 has shape \(8, 4\)"),
    ],
)
def test_what_does_not_fit_is_refused(source, settings, words):
    with pytest.raises(ValueError, match=words):
        from_torch(source, **settings)


def test_E05_dropout_of_one_layer_does_nothing_in_torch():
    """PyTorch warns of it; here the layer is the one without."""
    layer, _ = from_torch(torch.nn.LSTM(3, 4, dropout=0.5))
    assert layer.dropout == 0


def test_an_empty_row_keeps_its_start_here_and_is_refused_there():
    module = module_of(np.random.default_rng(0), "GRU", num_layers=1, bidirectional=False)
    layer, params = from_torch(module)
    x = np.zeros((2, 2, module.input_size), np.float32)
    with pytest.raises(RuntimeError, match="greater than 0"):
        torch.nn.utils.rnn.pack_padded_sequence(torch.from_numpy(x), torch.tensor([2, 0]))
    start = np.full((1, 2, module.hidden_size), 0.5, np.float32)
    _, carry = layer.apply(
        {"params": params}, x, unstack_carry(layer, {"h": start}), lengths=np.array([2, 0])
    )
    h = stack_carry(carry)["h"]
    np.testing.assert_array_equal(h[0, 1], start[0, 1])
    assert not np.array_equal(h[0, 0], start[0, 0])
