"""Without the other library, the error says how to get it."""

import importlib
import sys

import jax
import pytest

from seqmodels.cells import RNN
from seqmodels.interop.express import needed
from seqmodels.layers import Stack


def without(monkeypatch, library):
    """As on a machine where `library` is not installed."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"seqmodels.interop.{library}", raising=False)


@pytest.mark.parametrize("library", ["keras", "onnx"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library):
    without(monkeypatch, library)
    words = rf"^seqmodels.interop.{library} needs {library}: pip install 'seqmodels\[interop\]'$"
    with pytest.raises(ModuleNotFoundError, match=words) as caught:
        importlib.import_module(f"seqmodels.interop.{library}")
    assert caught.value.name == library


def test_pytorch_is_needed_on_the_way_out_alone(monkeypatch):
    without(monkeypatch, "torch")
    module = importlib.import_module("seqmodels.interop.torch")
    layer = Stack((RNN(2),))
    params = layer.init(jax.random.key(0, impl="unsafe_rbg"), jax.numpy.zeros((1, 1, 2)))["params"]
    with pytest.raises(ModuleNotFoundError, match="needs torch: pip install") as caught:
        module.to_torch(layer, params)
    assert caught.value.name == "torch"


def test_what_the_library_needs_itself_is_named_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    words = "keras needs tensorflow.*KERAS_BACKEND=jax"
    with pytest.raises(ModuleNotFoundError, match=words) as caught, needed("keras"):
        importlib.import_module("tensorflow")
    assert caught.value.name == "tensorflow"
