"""The next hours' temperature of San Francisco and Seattle, from the hours before.

Two files of 8,759 hours each, the year 2010 in local standard time without 14 March 3:00, in
tenths of a degree Fahrenheit; in the public domain (NOAA), inside the package vega_datasets
(MIT), which is not imported.

They are smooth: an hour differs from the same hour a day before by 0.2 °F in root mean square, as
averages over many years do and no single year's weather does. So the seasonal forecast is nearly
perfect, and a score says little next to `chance`: put it beside `baselines`.
"""

import importlib.util
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from seqmodels.data.manual import check_sha256, extract, manual_dir, manual_file, text_lines
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows
from seqmodels.data.splits import by_horizon, by_time, check
from seqmodels.data.windows import (
    Normaliser,
    fit_normaliser,
    forecast_rows,
    normalise,
    persistence,
    seasonal_naive,
    window_spans,
    window_starts,
)
from seqmodels.types import Spec

FILES = {
    "seattle": (
        "seattle-temps.csv",
        "c220666521ff4bec4ffb6f0d9acfdc5c1056564b1aad6f78d3b06aa0a0c8b085",
    ),
    "sf": ("sf-temps.csv", "3f91699707cfed43ef551394bebef4c2ebe5505157b9be7bff9558eea2fbaaec"),
}
"""The file of each city and its SHA-256."""

SOURCE = (
    "pip download --no-deps vega_datasets==0.9.0 (the wheel will do as it is), "
    "or pip install vega_datasets"
)
SHARES = {"train": 0.7, "valid": 0.1, "test": 0.2}  # of the hours
DAY = 24
FEATURES = 5
STORED: dict[str, Feature] = {
    "city": str,
    "hours": ((None,), np.int64),
    "fahrenheit": ((None,), np.float64),
}


class Series(NamedTuple):
    """The hours of all cities behind each other: P steps.

    hours  since 1970-01-01T00 in local time, so that those of two neighbours differ by 1
    """

    city: np.ndarray
    hours: Int[np.ndarray, "P"]
    fahrenheit: Float[np.ndarray, "P 1"]


@dataclass(frozen=True)
class Temperatures:
    """Windows of `context` hours with the `horizon` hours that follow as targets.

    context  hours T of a row, at least 24, which the seasonal forecast looks back
    horizon  hours to forecast, 1 to 24
    stride   hours from one window to the next

    A step holds the temperature, normalised by mean and standard deviation of all training hours,
    and sine and cosine of the hour of the day and of the day of the year: E = 5. The splits are
    the first 70 % of the year, the next 10 and the last 20, cut at the same hour for both cities,
    with `horizon` unused hours after each cut. So the test is about autumn days that were not
    seen in training.

    The loss is in normalised units. `seqmodels.data.windows.restore` with `normaliser()` brings
    predictions [N, horizon] back to °F (as predictions[..., None]); as there is one `std`, the
    root of the MSE times `std` is the RMSE in °F.
    """

    context: int = 72
    horizon: int = 24
    stride: int = 1

    def __post_init__(self) -> None:
        if self.context < DAY:
            raise ValueError(f"context is {self.context}; allowed: {DAY} or more hours")
        if not 1 <= self.horizon <= DAY:
            raise ValueError(f"horizon is {self.horizon}; allowed: 1 to {DAY} hours")
        if self.stride < 1:
            raise ValueError(f"stride is {self.stride}; allowed: 1 or more hours")

    @property
    def spec(self) -> Spec:
        return Spec(
            inputs=FEATURES,
            tokens=False,
            outputs=self.horizon,
            per_step=False,
            loss="squared_error",
            metric="mse",
        )

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N windows: inputs float32 [P, 5], shared by the windows; targets float32 [N, horizon].

        Raises ValueError for an unknown split, for windows too long for a split, or for files
        that are not the right ones; OSError if they are missing or `data_dir` cannot be written.
        """
        check_split(split)
        series = _series(data_dir)
        starts = self._starts(series)[split]
        degrees = normalise(_normaliser(series), series.fahrenheit)
        inputs = np.concatenate([degrees, calendar(series.hours)], axis=1)
        rows, _ = forecast_rows(inputs, degrees, starts, self.context, self.horizon)
        return rows

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """City and first hour of each window, as "seattle 2010-03-14T04", str [N]."""
        check_split(split)
        series = _series(data_dir)
        starts = self._starts(series)[split]
        hours = series.hours[starts].astype("datetime64[h]").astype(str)
        return np.array([f"{c} {h}" for c, h in zip(series.city[starts], hours, strict=True)])

    def chance(self, train: Rows, scored: Rows) -> float:
        """MSE of always answering the mean of the training targets, hour by hour ahead."""
        return _mse(scored, np.asarray(train.targets, np.float64).mean(axis=0, keepdims=True))

    def baselines(self, train: Rows, scored: Rows) -> dict[str, float]:
        """MSE of forecasts that need no training, by name.

        persistence     the last hour's temperature
        seasonal_naive  that of the same hour of the last day
        """
        steps = np.asarray(scored.starts)[:, None] + np.arange(self.context)
        history = np.asarray(scored.inputs)[steps, 0]
        return {
            "persistence": _mse(scored, persistence(history, self.horizon)),
            "seasonal_naive": _mse(scored, seasonal_naive(history, self.horizon, DAY)),
        }

    def normaliser(self, data_dir: str | Path | None = None) -> Normaliser:
        """Mean and standard deviation of the training hours in °F, each [1, 1]."""
        return _normaliser(_series(data_dir))

    def _starts(self, series: Series) -> dict[str, np.ndarray]:
        """Where the windows of each split start, proved not to meet."""
        length = self.context + self.horizon
        starts = window_starts(series.city, series.hours, length, self.stride)
        spans = window_spans(series.city, series.hours, starts, length)
        parts = by_time(series.hours, SHARES)
        cuts = [int(series.hours[parts[split]].min()) for split in SPLITS[1:]]
        try:
            chosen = by_horizon(spans, cuts, gap=self.horizon)
        except ValueError as error:
            raise ValueError(
                f"context {self.context} and horizon {self.horizon} are too long: {error}"
            ) from error
        found = {split: starts[rows] for split, rows in chosen.items()}
        check(
            {
                split: window_spans(series.city, series.hours, here, length)
                for split, here in found.items()
            },
            gap=self.horizon,
        )
        return found


def calendar(hours: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P 4"]:
    """Sine and cosine of the hour of the day, then of the day of the year."""
    days = hours.astype("datetime64[h]").astype("datetime64[D]")
    day = (days - days.astype("datetime64[Y]")).astype(np.int64)  # 0 is 1 January
    angles = 2 * math.pi * np.stack([hours % DAY / DAY, day / 365.25], axis=1)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(-1, 4)


def parse_temperatures(
    contents: bytes, where: str
) -> tuple[Int[np.ndarray, "T"], Float[np.ndarray, "T"]]:
    """Hours since 1970-01-01T00 and degrees of a CSV file with the columns `date` and `temp`.

    The columns may come in any order; a date is YYYY/MM/DD HH:MM or YYYY/MM/DD HH:MM:SS, on the
    hour and after the one before.

    Raises ValueError, as "where:line: ...", if a line is anything else.
    """
    header, *lines = text_lines(contents, where)
    columns = header.split(",")
    if sorted(columns) != ["date", "temp"]:
        raise ValueError(f"{where}:1: columns are {header[:40]!r}; allowed: date,temp or temp,date")
    hours: list[int] = []
    degrees: list[float] = []
    for number, line in enumerate(lines, 2):
        fields = line.split(",")
        if len(fields) != 2:
            raise ValueError(f"{where}:{number}: {len(fields)} fields; allowed: 2, as {header}")
        row = dict(zip(columns, fields, strict=True))
        hour = _hour(row["date"], f"{where}:{number}")
        if hours and hour <= hours[-1]:
            raise ValueError(f"{where}:{number}: date {row['date']} is not after the line before")
        hours.append(hour)
        degrees.append(_number(row["temp"], f"{where}:{number}"))
    if not hours:
        raise ValueError(f"{where}:1: the file ends without a line of data")
    return np.array(hours), np.array(degrees)


def _hour(text: str, where: str) -> int:
    found = re.fullmatch(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):00(:00)?", text)
    try:
        if not found:
            raise ValueError
        return int(np.datetime64("{}-{}-{}T{}".format(*found.groups()), "h").astype(np.int64))
    except ValueError as error:  # of NumPy: no such day or hour
        raise ValueError(
            f"{where}: date is {text[:40]!r}; allowed: YYYY/MM/DD HH:00 or YYYY/MM/DD HH:00:00"
        ) from error


def _number(text: str, where: str) -> float:
    if not re.fullmatch(r"-?[0-9]{1,3}(\.[0-9]+)?", text):
        raise ValueError(f"{where}: temp is {text[:40]!r}; allowed: degrees Fahrenheit, as 47.8")
    return float(text)


def _normaliser(series: Series) -> Normaliser:
    """Fitted to the hours before the first cut, of both cities."""
    return fit_normaliser(series.fahrenheit, by_time(series.hours, SHARES)["train"])


def _mse(rows: Rows, predictions: np.ndarray) -> float:
    """Of predictions [N, H], or [1, H] for all rows alike."""
    return float(np.mean(np.square(np.asarray(rows.targets, np.float64) - predictions)))


def _series(data_dir: str | Path | None) -> Series:
    manual = manual_dir(data_dir)

    def splits() -> dict[str, Iterator[dict[str, Any]]]:
        # One entry a city: windows and splits depend on the settings, so `load` makes them.
        return {"series": _cities(manual)}

    cities = read(stored("temperatures", "1.0.0", STORED, splits, data_dir), "series")
    return Series(
        np.repeat([city["city"].decode() for city in cities], [len(c["hours"]) for c in cities]),
        np.concatenate([city["hours"] for city in cities]),
        np.concatenate([city["fahrenheit"] for city in cities])[:, None],
    )


def _cities(manual: Path) -> Iterator[dict[str, Any]]:
    package = importlib.util.find_spec("vega_datasets")  # finds it without importing it
    installed = [Path(package.origin).parent / "_data"] if package and package.origin else []
    for city, (name, sha256) in FILES.items():
        path = manual_file((name, "vega_datasets-*"), SOURCE, manual, *installed)
        contents, where = path.read_bytes(), str(path)
        if path.name != name:
            contents, where = extract(contents, where, [name])[0], f"{path}/{name}"
        hours, degrees = parse_temperatures(contents, where)
        check_sha256(contents, where, sha256, SOURCE)
        yield {"city": city, "hours": hours, "fahrenheit": degrees}
