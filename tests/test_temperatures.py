"""Hourly temperatures: the parser, the windows, and baselines, on synthetic files and the real."""

import datetime
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmodels.data import temperatures
from seqmodels.data.manual import MANUAL_DIR_VARIABLE
from seqmodels.data.prepare import SPLITS
from seqmodels.data.splits import Spans, check
from seqmodels.data.temperatures import Temperatures, calendar, parse_temperatures
from seqmodels.data.windows import restore

START = datetime.datetime(2010, 1, 1)
MISSING = 700  # an hour that the files leave out
NAMES = {"seattle": "seattle-temps.csv", "sf": "sf-temps.csv"}


def hourly(hours: int, seed: int) -> dict[str, float]:
    """Degrees by hour, as "2010-01-01T00": a daily wave, a yearly one, and noise."""
    rng = np.random.default_rng(seed)
    times = np.array([hour for hour in range(hours) if hour != MISSING])
    wave = 50 + 9 * np.sin(times * 2 * np.pi / 24) - 8 * np.cos(times * 2 * np.pi / hours)
    degrees = np.round(wave + rng.normal(size=len(times)) + 5 * seed, 1)
    stamps = [(START + datetime.timedelta(hours=int(h))).isoformat()[:13] for h in times]
    return dict(zip(stamps, degrees.tolist(), strict=True))


def write_csv(path: Path, degrees: dict[str, float], city: str) -> bytes:
    """As the two files are: columns in either order, seconds or none, no last line end."""
    dates = [stamp.replace("-", "/").replace("T", " ") + ":00" for stamp in degrees]
    if city == "sf":
        lines = [
            "temp,date",
            *(f"{v},{d}:00" for d, v in zip(dates, degrees.values(), strict=True)),
        ]
    else:
        lines = ["date,temp", *(f"{d},{v}" for d, v in zip(dates, degrees.values(), strict=True))]
    path.write_bytes("\n".join(lines).encode())
    return path.read_bytes()


def place(folder: Path, patch: pytest.MonkeyPatch, series: dict[str, dict[str, float]]) -> Path:
    """Writes the files of both cities to where they are looked for; the data directory."""
    (folder / "manual").mkdir(parents=True)
    files = {}
    for city, degrees in series.items():
        contents = write_csv(folder / "manual" / NAMES[city], degrees, city)
        files[city] = NAMES[city], hashlib.sha256(contents).hexdigest()
    patch.setattr(temperatures, "FILES", files)
    patch.setenv(MANUAL_DIR_VARIABLE, str(folder / "manual"))
    return folder / "data"


SERIES = {city: hourly(1500, seed) for seed, city in enumerate(NAMES)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Prepared once; prepared data do not need the files any more."""
    with pytest.MonkeyPatch.context() as patch:
        folder = place(tmp_path_factory.mktemp("temperatures"), patch, SERIES)
        Temperatures().load("train", folder)
    return folder


def hours_from(stamp: str, count: int, first: int = 0) -> list[str]:
    begin = datetime.datetime.fromisoformat(stamp)
    hours = range(first, first + count)
    return [(begin + datetime.timedelta(hours=h)).isoformat()[:13] for h in hours]


# The parser.

GOOD = b"date,temp\r\n2010/01/01 00:00,39.4\r\n2010/01/01 02:00:00,-5\r\n"


def test_parser_reads_both_layouts():
    hours, degrees = parse_temperatures(GOOD, "x.csv")
    assert hours.tolist() == [40 * 365 * 24 + 10 * 24, 40 * 365 * 24 + 10 * 24 + 2]
    assert degrees.tolist() == [39.4, -5.0]
    again, _ = parse_temperatures(b"temp,date\n1.0,2010/01/01 00:00:00", "x.csv")
    assert again.tolist() == hours[:1].tolist()


@pytest.mark.parametrize(
    "old, new, message",
    [
        (b"date,temp", b"day,temp", "1: columns are 'day,temp'; allowed: date,temp or temp,date"),
        (b"date,temp", b"date,date", "1: columns are 'date,date'; allowed"),
        (b"39.4", b"39.4,1", "2: 3 fields; allowed: 2, as date,temp"),
        (b"39.4\r\n", b"39.4\r\n\r\n", "3: 1 fields; allowed: 2"),
        (b"39.4", b"", "2: temp is ''; allowed: degrees Fahrenheit, as 47.8"),
        (b"39.4", b"nan", "2: temp is 'nan'; allowed"),
        (b"39.4", b"1e3", "2: temp is '1e3'; allowed"),
        (
            b"2010/01/01 02",
            b"2010-01-01 02",
            "3: date is '2010-01-01 02:00:00'; allowed: YYYY/MM/DD",
        ),
        (b"2010/01/01 02", b"2010/02/30 02", "3: date is '2010/02/30 02:00:00'; allowed"),
        (b"2010/01/01 02", b"2010/01/01 24", "3: date is '2010/01/01 24:00:00'; allowed"),
        (b"02:00:00", b"02:30:00", "3: date is '2010/01/01 02:30:00'; allowed"),
        (b"02:00:00", b"00:00:00", "3: date 2010/01/01 00:00:00 is not after the line before"),
        (b"39.4", b"\xff", "2: not UTF-8"),
        (GOOD, b"", " the file is empty"),
        (GOOD, b"date,temp\n", "1: the file ends without a line of data"),
    ],
)
def test_parser_names_file_and_line(old, new, message):
    with pytest.raises(ValueError, match=f"^folder/x.csv:{re.escape(message)}") as caught:
        parse_temperatures(GOOD.replace(old, new), "folder/x.csv")
    assert "\n" not in str(caught.value)


@given(st.data())
def test_parser_answers_any_damage_with_one_line(data):
    contents = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(contents) - 1))
        contents[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        hours, degrees = parse_temperatures(bytes(contents), "x.csv")
    except ValueError as error:
        assert re.fullmatch(r"x\.csv:(\d+:)? .*", str(error))
    else:
        assert len(hours) == len(degrees) > 0
        assert (np.diff(hours) > 0).all() and np.isfinite(degrees).all()


@given(st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2050, 1, 1)))
def test_calendar_is_on_the_circle_of_day_and_year(moment):
    moment = moment.replace(minute=0, second=0, microsecond=0)
    hour = np.datetime64(moment, "h").astype(np.int64)[None]
    of_day = 2 * np.pi * moment.hour / 24
    of_year = 2 * np.pi * (moment.timetuple().tm_yday - 1) / 365.25
    wanted = [np.sin(of_day), np.cos(of_day), np.sin(of_year), np.cos(of_year)]
    np.testing.assert_allclose(calendar(hour), [wanted], atol=1e-12)


# Windows, from synthetic files.


@pytest.mark.parametrize("settings", [{}, {"context": 24, "horizon": 1}, {"stride": 5}])
def test_rows_are_the_hours_that_their_ids_name(settings, data_dir):
    dataset = Temperatures(**settings)
    context, horizon = dataset.context, dataset.horizon
    normaliser = dataset.normaliser(data_dir)
    spans = {}
    for split in SPLITS:
        rows, ids = dataset.load(split, data_dir), dataset.ids(split, data_dir)
        assert len(ids) == len(set(ids)) == len(rows.starts)
        assert rows.inputs.shape[1:] == (dataset.spec.inputs,) and rows.inputs.dtype == np.float32
        assert rows.targets.shape == (len(ids), dataset.spec.outputs)
        assert rows.targets.dtype == np.float32 and rows.weights is None
        assert (rows.lengths == context).all()
        assert len(rows.inputs) < len(ids) * context / 4  # windows share what they overlap in
        targets = restore(normaliser, rows.targets[..., None])[..., 0]
        histories = restore(normaliser, rows.inputs[:, :1])[:, 0]
        for row in range(0, len(ids), 37):
            city, stamp = ids[row].split()
            wanted = [SERIES[city][hour] for hour in hours_from(stamp, context)]
            here = slice(rows.starts[row], rows.starts[row] + context)
            np.testing.assert_allclose(histories[here], wanted, atol=1e-4)
            wanted = [SERIES[city][hour] for hour in hours_from(stamp, horizon, context)]
            np.testing.assert_allclose(targets[row], wanted, atol=1e-4)
            hours = np.array(hours_from(stamp, context), "datetime64[h]").astype(np.int64)
            np.testing.assert_allclose(rows.inputs[here, 1:], calendar(hours), atol=1e-6)
        city, stamp = np.array([name.split() for name in ids]).T
        first = stamp.astype("datetime64[h]").astype(np.int64)
        spans[split] = Spans(city, first, first + context + horizon - 1, ids)
        assert set(city) == {"seattle", "sf"}
    check(spans, gap=horizon)
    latest = max(spans["train"].last)
    assert min(spans["valid"].first) > latest + horizon  # one cut for both cities


def test_J03_windows_outside_the_splits_touch_a_cut_or_the_missing_hour(data_dir):
    dataset = Temperatures(context=24, horizon=3)
    ids = {split: dataset.ids(split, data_dir) for split in SPLITS}
    per_city = 1500 - 1 - 2 * 26  # a window of 27 hours on either side of the missing one
    crossing = 2 * (2 * 26 + 2 * 3) // 2  # two cuts: windows over them, or in the gaps behind
    assert sum(map(len, ids.values())) == 2 * (per_city - crossing)
    hours = len(SERIES["sf"])
    for split, share in zip(SPLITS, (0.7, 0.1, 0.2), strict=True):
        assert abs(len(ids[split]) / 2 - share * hours) < 60


def test_J05_later_values_reach_neither_training_rows_nor_the_normaliser(data_dir, tmp_path):
    dataset = Temperatures()
    last = max(dataset.ids("train", data_dir)).split()[1]
    border = hours_from(last, 1, dataset.context + dataset.horizon)[0]  # first unseen hour
    changed = {
        city: {hour: value if hour < border else value + 9.0 for hour, value in degrees.items()}
        for city, degrees in SERIES.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        other = place(tmp_path, patch, changed)
        after = dataset.load("train", other)
    before = dataset.load("train", data_dir)
    for one, two in zip(before[:4], after[:4], strict=True):
        np.testing.assert_array_equal(one, two)
    assert dataset.normaliser(data_dir) == dataset.normaliser(other)
    test = dataset.load("test", data_dir).inputs[:, 0], dataset.load("test", other).inputs[:, 0]
    assert (test[1] > test[0]).all()


def test_chance_and_baselines_are_those_of_a_plain_loop(data_dir):
    dataset = Temperatures(context=30, horizon=24, stride=7)
    normaliser = dataset.normaliser(data_dir)
    (mean,), (std,) = normaliser.mean[0], normaliser.std[0]
    squares = {"chance": [], "persistence": [], "seasonal_naive": []}
    train, test = (dataset.load(split, data_dir) for split in ("train", "test"))
    answers = train.targets.astype(np.float64).mean(axis=0)
    for name in dataset.ids("test", data_dir):
        city, stamp = name.split()
        values = [(SERIES[city][hour] - mean) / std for hour in hours_from(stamp, 54)]
        for ahead in range(24):
            target = values[30 + ahead]
            squares["chance"].append((target - answers[ahead]) ** 2)
            squares["persistence"].append((target - values[29]) ** 2)
            squares["seasonal_naive"].append((target - values[6 + ahead]) ** 2)
    wanted = {name: np.mean(terms) for name, terms in squares.items()}
    assert dataset.chance(train, test) == pytest.approx(wanted.pop("chance"), rel=1e-5)
    assert dataset.baselines(train, test) == pytest.approx(wanted, rel=1e-5)


# What is refused.


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"context": 23}, "context is 23; allowed: 24 or more hours"),
        ({"horizon": 0}, "horizon is 0; allowed: 1 to 24 hours"),
        ({"horizon": 25}, "horizon is 25; allowed: 1 to 24 hours"),
        ({"stride": 0}, "stride is 0; allowed: 1 or more hours"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Temperatures(**settings)


def test_windows_longer_than_a_split_are_refused(data_dir):
    with pytest.raises(ValueError, match="context 120 and horizon 24 are too long: split 'valid'"):
        Temperatures(context=120).load("valid", data_dir)


@pytest.mark.parametrize("ask", ["load", "ids"])
def test_unknown_split_names_the_allowed_ones(ask, data_dir):
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        getattr(Temperatures(), ask)("dev", data_dir)


# Finding the files.


def test_files_that_are_missing_or_others_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(MANUAL_DIR_VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setattr(temperatures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match="no file seattle-temps.csv or vega_datasets.*0.9.0"):
        Temperatures().load("train", tmp_path / "data")
    data_dir = place(tmp_path, monkeypatch, SERIES)
    monkeypatch.setitem(temperatures.FILES, "sf", (NAMES["sf"], "0" * 64))
    with pytest.raises(ValueError, match="sf-temps.csv: SHA-256 is .* expected 000"):
        Temperatures().load("train", data_dir)


def test_the_wheel_will_do_as_it_is(tmp_path, monkeypatch, data_dir):
    other = place(tmp_path, monkeypatch, SERIES)
    with zipfile.ZipFile(tmp_path / "manual/vega_datasets-0.9.0-py3-none-any.whl", "w") as wheel:
        for name in NAMES.values():
            wheel.write(tmp_path / "manual" / name, f"vega_datasets/_data/{name}")
            (tmp_path / "manual" / name).unlink()
    for one, two in zip(
        Temperatures().load("test", data_dir)[:4],
        Temperatures().load("test", other)[:4],
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


def test_the_installed_package_is_found_and_not_imported(tmp_path, monkeypatch):
    other = place(tmp_path, monkeypatch, SERIES)
    package = tmp_path / "site" / "vega_datasets"
    (package / "_data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in NAMES.values():
        (tmp_path / "manual" / name).rename(package / "_data" / name)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert len(Temperatures().load("test", other).lengths)
    assert "vega_datasets" not in sys.modules


# The real files.

MANUAL = Path(os.environ.get(MANUAL_DIR_VARIABLE) or "nothing")


@pytest.mark.skipif(
    not [*MANUAL.glob("vega_datasets-*"), *MANUAL.glob("sf-temps.csv")],
    reason=f"no vega_datasets wheel in ${MANUAL_DIR_VARIABLE}",
)
def test_the_real_year_is_two_cities_with_one_missing_hour(tmp_path):
    dataset = Temperatures()
    rows = {split: dataset.load(split, tmp_path) for split in SPLITS}
    sizes = {split: len(one.lengths) for split, one in rows.items()}
    assert sizes == {"train": 11882, "valid": 1514, "test": 3266}
    ids = dataset.ids("train", tmp_path)
    assert (ids[0], dataset.ids("test", tmp_path)[-1]) == (
        "seattle 2010-01-01T00",
        "sf 2010-12-28T00",
    )
    assert "sf 2010-03-14T04" in ids  # the first window after 14 March 3:00, which is missing
    crossing = hours_from("2010-03-14T03", 96, -95)
    assert not {f"sf {hour}" for hour in crossing} & set(ids)
    baselines = dataset.baselines(rows["train"], rows["test"])
    assert baselines["seasonal_naive"] < 1e-3 < 0.1 < baselines["persistence"]
    assert baselines["persistence"] < 1 < dataset.chance(rows["train"], rows["test"]) < 1.5
