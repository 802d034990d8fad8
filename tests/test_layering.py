"""The map of the project, enforced: who may import whom, and how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("seqmodels", "experiments", "configs", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LONGEST = 350

# What each part of `seqmodels` may import: parts of `seqmodels`, and packages. The standard
# library is open to all but for what SHELL names. None: any package.
MATHS = {"jax", "numpy", "jaxtyping"}
FLAX = MATHS | {"flax"}
PARTS: dict[str, tuple[set[str], set[str] | None]] = {
    "types": (set(), MATHS),
    "initializers": ({"types"}, MATHS),
    "cells": ({"types", "initializers"}, MATHS),
    "recurrence": ({"types"}, MATHS),
    "layers": ({"types", "initializers", "cells", "recurrence"}, FLAX),
    "nnx_layers": ({"types", "layers"}, FLAX),
    "readout": ({"types"}, MATHS),
    "models": ({"types", "initializers", "layers", "readout"}, FLAX),
    "generation": ({"types", "layers"}, FLAX),
    "losses": ({"types"}, MATHS | {"optax"}),
    "metrics": ({"types", "losses"}, MATHS | {"optax"}),
    "optim": ({"types"}, MATHS | {"optax"}),
    "training": ({"types", "models", "losses", "metrics", "optim"}, FLAX | {"optax"}),
    "tasks": ({"types"}, MATHS),
    "data": ({"types"}, None),
    "interop": ({"types", "initializers", "cells", "layers"}, None),
}
SHELL = {
    "os",
    "sys",
    "io",
    "time",
    "datetime",
    "pathlib",
    "logging",
    "random",
    "shutil",
    "argparse",
}
HAS_FILES = {"data", "interop"}


def imports(path):
    """Dotted names of all that a file imports, at any depth; `from a import b` as a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path):
    return path.relative_to(ROOT / "seqmodels").parts[0].removesuffix(".py")


LIBRARY = [p for p in FILES if p.is_relative_to(ROOT / "seqmodels") and part_of(p) != "__init__"]


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=[str(p.relative_to(ROOT)) for p in paths])


@named(LIBRARY)
def test_the_library_keeps_its_layers(path):
    part = part_of(path)
    assert part in PARTS, f"{path}: add its row to PARTS"
    parts, packages = PARTS[part]
    for name in imports(path):
        package, *rest = name.split(".")
        if package == "seqmodels":
            assert rest and rest[0] in parts | {part}, f"{part} imports {name}"
        elif package in sys.stdlib_module_names:
            assert part in HAS_FILES or package not in SHELL, f"{part} imports {name}"
        else:
            assert package not in FOLDERS, f"{part} imports {name}"
            assert packages is None or package in packages, f"{part} imports {name}"


@named([p for p in FILES if p.is_relative_to(ROOT / "experiments")])
def test_experiments_do_not_know_the_configs(path):
    for name in imports(path):
        assert name.split(".")[0] not in ("configs", "tests"), f"{path} imports {name}"


@named([p for p in FILES if p.is_relative_to(ROOT / "configs")])
def test_configs_are_plain_python(path):
    for name in imports(path):
        assert name.split(".")[0] in sys.stdlib_module_names | {"ml_collections", "configs"}, name


def test_configs_load_without_jax():
    names = [f"configs.{path.stem}" for path in sorted((ROOT / "configs").glob("[a-z]*.py"))]
    program = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name).get_config()
heavy = {{"jax", "flax", "numpy", "tensorflow", "seqmodels"}} & set(sys.modules)
assert not heavy - {{"numpy"}}, heavy
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_only_the_recurrence_loops_over_time():
    loops = {"scan", "while_loop", "fori_loop", "associative_scan", "map"}
    for path in LIBRARY:
        if part_of(path) in ("recurrence", "generation", "training", "data"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in loops:
                assert ast.unparse(node) == "jax.tree.map", f"{path}:{node.lineno}"


@named(FILES)
def test_a_file_reads_in_one_sitting(path):
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST, f"{path} has {lines} lines: two topics?"


def test_every_rule_has_files_to_rule():
    """A rule about a folder that does not exist would always hold."""
    assert {part_of(path) for path in LIBRARY} >= set(PARTS) - {"interop"}
    for folder in FOLDERS:
        assert any(path.is_relative_to(ROOT / folder) for path in FILES)
