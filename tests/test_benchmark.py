"""The benchmark at tiny sizes: what it writes and prints, not how long anything takes."""

import json
from pathlib import Path

import pytest

from experiments import benchmark, benchmark_worker
from experiments.benchmark_ours import Contender
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


@pytest.mark.parametrize(
    "option, value, says",
    [
        ("rounds", 0, "--rounds=0 must be at least 1"),
        ("seconds", -1.0, "--seconds=-1.0 must be at least 0"),
        ("out", "missing/b.json", "--out=missing/b.json cannot be written"),
        ("workdir", Path("x"), "--workdir=x"),
    ],
)
def test_mistakes_are_found_before_anything_is_timed(option, value, says, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "Worker", None)
    given = {"workdir": None, "out": str(tmp_path / "b.json"), "libraries": "seqmodels"} | USUAL
    with pytest.raises(UserError, match=says):
        benchmark.main(**given | {option: value})
    quick = given | {"shapes": "big", "quick": True}
    with pytest.raises(UserError, match="--shapes=big: --quick leaves"):
        benchmark.main(**quick)


def test_a_library_that_ends_says_why():
    worker = benchmark.Worker("seqmodels")
    with pytest.raises(UserError, match="seqmodels ended while asked to .*KeyError: 'lost'"):
        worker.ask("prepare", cell="lost", shape=(1, 1, 1, 1), ragged=False)
    worker.close()


def test_milliseconds_are_of_one_step_of_many_in_a_call(monkeypatch):
    clock = [0.0]

    def train():
        clock[0] += 0.25

    monkeypatch.setattr(benchmark_worker.time, "perf_counter", lambda: clock[0])
    contender = Contender(train, train, steps=4)
    assert benchmark_worker.milliseconds(contender, "train", seconds=0.4) == 250 / 4
    assert clock[0] == 0.5
    assert benchmark_worker.milliseconds(contender, "forward", seconds=0.0) == 250


def test_ratios_and_floors_of_known_times():
    """A step of training has three times the products of a forward pass; turns go round."""
    order = []

    class Fake:
        def __init__(self, library, ms):
            self.library, self.ms = library, ms

        def send(self, do, **request):
            pass

        def answer(self):
            return {"steps_per_call": 1, "note": "", "peak_mb": 1.0}

        def ask(self, do, measure="", seconds=0.0):
            if do == "rate":
                return 2.0  # GFLOP/s
            order.append((measure, self.library))
            return self.ms[measure].pop(0)

    ours = Fake("seqmodels", {"forward": [1.0, 9.0, 2.0], "train": [5.0, 4.0, 6.0]})
    other = Fake("linen", {"forward": [4.0, 4.0, 4.0], "train": [10.0, 10.0, 10.0]})
    rows = benchmark.compare([ours, other], "lstm", "small", 3, 0.0, together=False)
    found = {(row["library"], row["measure"]): row for row in rows}
    forward, train = found["seqmodels", "forward"], found["seqmodels", "train"]
    assert (forward["median_ms"], forward["most_ms"], train["median_ms"]) == (2.0, 9.0, 5.0)
    products = 2 * 32 * 256 * (64 + 128) * 4 * 128  # multiplications and additions
    assert forward["floor_ms"] == pytest.approx(products / 2e9 * 1e3)
    assert train["floor_ms"] == pytest.approx(3 * products / 2e9 * 1e3)
    assert train["gflops"] == pytest.approx(3 * products / 5e-3 / 1e9)
    assert [who for what, who in order if what == "train"] == [
        *("seqmodels", "linen"),
        *("linen", "seqmodels"),
        *("seqmodels", "linen"),
    ]
