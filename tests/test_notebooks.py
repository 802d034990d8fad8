"""Notebooks: stripped as they stand in the repository, and able to run from top to bottom."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS])

EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
"""


def code(book):
    """Id and source of each code cell."""
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    return [(cell["id"], "".join(cell["source"])) for cell in cells]


def test_there_is_a_first_notebook():
    assert NOTEBOOKS and NOTEBOOKS[0].name.startswith("01_")


@every_notebook
def test_notebooks_are_stripped(path):
    """No output, no execution count, and no metadata beyond the kernel's language."""
    book = json.loads(path.read_text())
    assert book["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert book["nbformat"] == 4 and book["nbformat_minor"] >= 5
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        assert not cell["metadata"], cell["id"]
        assert not cell.get("outputs") and cell.get("execution_count") is None, cell["id"]


@every_notebook
def test_notebooks_import_the_library_and_define_none_of_it(path):
    """No class, no name that the library has, and all imports in the first cell, or in the one
    after it has gone to the checkout."""
    tree = [ast.parse(p.read_text()) for p in (ROOT / "seqmodels").rglob("*.py")]
    public = {
        node.name
        for module in tree
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }
    cells = code(json.loads(path.read_text()))
    for number, (name, source) in enumerate(cells):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, ast.ClassDef), name
            if isinstance(node, ast.FunctionDef):
                assert node.name not in public, f"cell {name} redefines {node.name}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                first = number == 1 and "os.chdir" in cells[0][1]
                assert number == 0 or first, f"cell {name} imports; the first cell should"


@pytest.mark.slow
@every_notebook
def test_K04_notebooks_run_headless(path, tmp_path):
    """In a kernel, whose own arguments stand in sys.argv; nothing is left behind."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if path.name.startswith("04_"):
        pytest.importorskip("torch", reason="the notebook brings a PyTorch model")
    before = path.read_bytes()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SEQMODELS_NOTEBOOK_QUICK": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert path.read_bytes() == before
    assert not [*(tmp_path / "work").iterdir()]
