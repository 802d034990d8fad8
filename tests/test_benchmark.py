"""The benchmark at tiny sizes: what it writes and prints, not how long anything takes."""

import json

import pytest

from experiments import benchmark
from experiments.errors import UserError

WANTED = {"library", "cell", "shape", "measure", "median_ms", "gflops", "floor_ms", "peak_mb"}
USUAL = {"cells": "lstm", "shapes": "small,ragged", "rounds": 2, "seconds": 0.01, "quick": False}


def test_rows_of_two_libraries(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHAPES", {name: (4, 5, 2, 3) for name in benchmark.SHAPES})
    out = tmp_path / "figures.json"
    assert benchmark.main(None, out=str(out), libraries="seqmodels,linen", **USUAL) == 0
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 2 * 2 * 2
    assert all(row.keys() >= WANTED and row["median_ms"] > 0 for row in rows)
    assert {row["library"] for row in rows} == {"seqmodels", "linen"}
    assert (tmp_path / "figures.png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert "served by: seqmodels fused, batch over" in printed
    assert "train: linen takes" in printed and "training steps a call: seqmodels 16" in printed


@pytest.mark.parametrize("option", ["libraries", "cells", "shapes"])
def test_a_name_that_does_not_exist_is_refused(option, tmp_path):
    given = {"libraries": "seqmodels"} | USUAL | {option: "unknown"}
    with pytest.raises(UserError, match=f"--{option}"):
        benchmark.main(None, out=str(tmp_path / "figures.json"), **given)
    assert not any(tmp_path.iterdir())
