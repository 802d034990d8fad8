"""Guard rails that are on for every test."""

import itertools
import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# One cache of compiled programs for this session: workers and subprocesses inherit it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="jax-cache-"))
os.environ.setdefault("SEQMODELS_DATA_DIR", tempfile.mkdtemp(prefix="data-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import config, install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Shape annotations of the library are checked at each call made by a test.
install_import_hook("seqmodels", "typechecker.check")

settings.register_profile(
    "seqmodels",
    deadline=None,  # no test on the clock: the first example compiles
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("seqmodels")


tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs():
    """Each compiled program takes some of the mappings that the system allows a process; without
    any left, XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if next(tests_run) % 10 == 0 and maps.exists():
        taken = maps.read_bytes().count(b"\n")
        if taken > 25_000:  # of 65,530 by default
            jax.clear_caches()


@pytest.fixture
def x64():
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def standard_promotion():
    """For tests that call libraries which mix dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def unchecked():
    """As users run it: annotations say nothing, the function itself has to."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
