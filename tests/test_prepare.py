"""Preparing data: once for all processes, repaired after a kill, clear when it cannot be done."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from written_sets import example, prepare_like

from seqmodels.data import Digits
from seqmodels.data.prepare import default_data_dir, read, stored
from seqmodels.data.public import Public

# Prepares four examples of its own, slowly, and notes each in a diary.
SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from seqmodels.data.prepare import read, stored

folder, seconds, processes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

def examples():
    for value in range(4):
        yield {"value": value}
        with open(folder / "diary", "a") as diary:
            diary.write(f"{value} ")
        time.sleep(seconds)

(folder / f"ready{time.time_ns()}").touch()
while len(list(folder.glob("ready*"))) < processes:  # start together
    time.sleep(0.01)
splits = lambda: {"train": examples()}
builder = stored("counting", "1.0.0", {"value": np.int64}, splits, folder / "data")
print([int(example["value"]) for example in read(builder, "train")])
"""


def start(folder: Path, seconds: float, processes: int = 1) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(seconds), str(processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )


def assert_good(process: subprocess.Popen) -> None:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[0, 1, 2, 3]\n"), err


def test_two_processes_prepare_once_and_both_succeed(tmp_path):
    for process in [start(tmp_path, seconds=0.2, processes=2) for _ in range(2)]:
        assert_good(process)
    assert (tmp_path / "diary").read_text() == "0 1 2 3 "


def test_a_killed_preparation_is_repaired_by_the_next(tmp_path):
    with start(tmp_path, seconds=60) as killed:
        while not (tmp_path / "diary").exists():
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
        killed.communicate()
    assert list(tmp_path.rglob("incomplete.*"))
    assert_good(start(tmp_path, seconds=0))
    assert not list(tmp_path.rglob("incomplete.*"))


def test_what_is_stored_comes_back_with_its_metadata_and_is_made_once(tmp_path):
    features = {"n": np.int64, "name": str, "row": ((None, 2), np.float32), "sure": np.bool_}
    examples = [
        {"n": -1, "name": "é", "row": np.ones((3, 2), np.float32), "sure": True},
        {"n": 2**40, "name": "", "row": np.zeros((0, 2), np.float32), "sure": False},
    ]
    times = []

    def all_of(config):
        kept = {}

        def splits():
            times.append(config)
            kept["words"] = ["b", "a"]
            return {"one": reversed(examples), "two": examples[:1]}

        return stored("things", "1.2.3", features, splits, tmp_path, config=config, metadata=kept)

    for config in ("this", "this", "that"):
        builder = all_of(config)
        assert list(builder.info.metadata["words"]) == ["b", "a"]
        for split, wanted in (("one", examples[::-1]), ("two", examples[:1])):
            for got, one in zip(read(builder, split), wanted, strict=True):
                assert got["name"].decode() == one["name"]
                for name in ("n", "row", "sure"):
                    np.testing.assert_array_equal(got[name], one[name])
                assert got["row"].dtype == np.float32
    assert times == ["this", "that"]
    assert (tmp_path / "things/that/1.2.3/dataset_info.json").exists()


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "data"
    with pytest.raises(OSError, match=rf"^cannot write .*{below} .*SEQMODELS_DATA_DIR.*$") as error:
        Digits().load("train", below)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def digits():
    """Where the digits are prepared."""
    Digits().load("test")
    return default_data_dir() / "digits" / "1.0.0"


def scramble(path):
    """Other bytes where the first records are."""
    with path.open("r+b") as file:
        file.seek(100)
        file.write(bytes(range(256)) * 4)


RECORDS = "digits-test.array_record-00000-of-00001"


@pytest.mark.parametrize(
    "name, damage, reason",
    [
        (RECORDS, lambda path: os.truncate(path, 1000), "ArrayRecord file"),
        (RECORDS, Path.unlink, "No such file"),
        (RECORDS, scramble, "Corrupted"),
        ("dataset_info.json", lambda path: os.truncate(path, 50), "not a JSON object"),
        ("dataset_info.json", lambda path: path.write_text("[]"), "not a JSON object"),
        ("dataset_info.json", Path.unlink, "no splits"),
    ],
)
def test_damaged_data_are_one_line_that_tells_what_to_delete(
    name, damage, reason, digits, tmp_path
):
    place = tmp_path / "digits" / "1.0.0"
    shutil.copytree(digits, place)
    damage(place / name)
    with pytest.raises(OSError, match=rf"the prepared data in {place} are damaged") as caught:
        Digits().load("test", tmp_path)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert "delete that directory" in str(caught.value)


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 1000), scramble])
def test_damaged_public_data_are_one_line_too(damage, tmp_path):
    numbered = [example("imdb_reviews", n) for n in range(20)]
    prepare_like("imdb_reviews", tmp_path, {"train": numbered, "test": numbered})
    (records,) = tmp_path.rglob("*train*array_record*")
    damage(records)
    with pytest.raises(OSError, match=rf"the prepared data in {tmp_path}/imdb_reviews are damaged"):
        Public("imdb_reviews").load("train", tmp_path)


def test_default_directory_follows_the_environment(monkeypatch, tmp_path):
    for name in ("SEQMODELS_DATA_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_data_dir() == Path.home() / ".cache/seqmodels/data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "seqmodels/data"
    monkeypatch.setenv("SEQMODELS_DATA_DIR", os.path.join("~", "sets"))
    assert default_data_dir() == Path.home() / "sets"
