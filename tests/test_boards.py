"""TensorBoard's files: whole records, the numbers of results.jsonl, one folder a seed."""

import math
import struct

import jax
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog
from test_experiments import tiny
from test_resume import interrupted_after

from experiments.results import Results, as_dict, read_rows
from experiments.runs import run_one
from experiments.signals import Interrupted

pytestmark = pytest.mark.usefixtures("standard_promotion")


def records(path):
    """The records of one event file, each with its two checksums compared."""
    data = path.read_bytes()
    while data:
        head, (size,) = data[:8], struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert (unmasked(data[8:12]), unmasked(data[12 + size : 16 + size])) == (
            crc32c(head),
            crc32c(body),
        )
        yield body
        data = data[16 + size :]


def unmasked(four):
    """A CRC as TFRecord files store it: rotated by 15 bits, and a constant added."""
    rotated = (struct.unpack("<I", four)[0] - 0xA282EAD8) % 2**32
    return (rotated >> 17 | rotated << 15) % 2**32


def points(folder):
    """(tag, step) -> all values, as TensorBoard shows them: files in the order of their names, and
    a start hides what was there from its step on."""
    shown = {}
    for path in sorted(folder.iterdir()):
        for record in records(path):
            event = Event.FromString(record)
            if event.session_log.status == SessionLog.START:
                shown = {at: values for at, values in shown.items() if at[1] < event.step}
            for value in event.summary.value:
                shown.setdefault((value.tag, event.step), []).append(value.simple_value)
    return shown


def assert_same_numbers(workdir, seeds):
    """Every number of results.jsonl is there, once, and no other."""
    rows = read_rows(workdir / "results.jsonl")
    folders = sorted(path.name for path in (workdir / "tensorboard").iterdir())
    assert folders == [f"seed_{seed}" for seed in seeds]
    for seed in seeds:
        expected = {}
        for row in rows:
            prefix = f"test_{row['length']}" if row["kind"] == "test" else row["kind"]
            for name, value in row.items():
                if row["seed"] == seed and isinstance(value, float) and name != "seconds":
                    (single,) = struct.unpack("<f", struct.pack("<f", value))
                    expected[f"{prefix}/{name}", row["step"]] = [single]
        assert points(workdir / "tensorboard" / f"seed_{seed}") == expected
        assert {("valid/score", 2), ("train/loss", 4), ("test_8/score", 4)} <= expected.keys()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("boards") / "run"
    with jax.numpy_dtype_promotion("standard"):
        run_one(short(), workdir)
    return workdir


def short(seeds=2):
    return tiny(seeds=seeds, steps_per_call=1)


def test_files_hold_the_numbers_of_the_results(finished):
    assert_same_numbers(finished, [0, 1])


@pytest.mark.slow
def test_a_further_seed_has_a_folder_of_its_own(finished):
    before = {path: path.read_bytes() for path in finished.glob("tensorboard/*/*")}
    run_one(short(seeds=3), finished)
    assert_same_numbers(finished, [0, 1, 2])
    assert all(path.read_bytes() == data for path, data in before.items())


@pytest.mark.parametrize("calls", [*(pytest.param(n, marks=pytest.mark.slow) for n in range(3)), 3])
def test_after_a_resume_each_point_is_there_once(calls, tmp_path, monkeypatch):
    """Also where nothing but the test was missing, whose rows stand at the last step."""
    config = short()
    with monkeypatch.context() as patch:
        interrupted_after(calls, patch)
        with pytest.raises(Interrupted):
            run_one(config, tmp_path / "run")
    run_one(config, tmp_path / "run")
    assert_same_numbers(tmp_path / "run", [0, 1])


def test_what_a_kill_kept_from_the_disk_comes_back(finished, tmp_path):
    """Rows reach results.jsonl at once, event files some seconds later."""
    first = Results(tmp_path, as_dict(tiny()), "adding")
    for step in (2, 4):
        for kind in ("train", "valid"):
            first.write(kind, 0, step=step, score=step / 8, loss=math.nan, chance=0.5)
    size = first.size()
    first.write("train", 0, step=6, score=6 / 8)  # after the checkpoint
    first.__exit__()
    for path in (tmp_path / "tensorboard/seed_0").iterdir():
        path.write_bytes(path.read_bytes()[:-100])

    again = Results(tmp_path, as_dict(tiny()), "adding")
    again.rewind(size)
    for step in (5, 6):
        again.write("train", 0, step=step, score=step / 16)
    again.__exit__()
    train = {2: 2 / 8, 4: 4 / 8, 5: 5 / 16, 6: 6 / 16}
    expected = {("train/score", step): [score] for step, score in train.items()}
    expected |= {("valid/score", step): [train[step]] for step in (2, 4)}
    expected |= {(f"{kind}/chance", step): [0.5] for kind in ("train", "valid") for step in (2, 4)}
    assert points(tmp_path / "tensorboard/seed_0") == expected
    assert not again.finished
