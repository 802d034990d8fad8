"""The report's figures, as SVG text that stands inline in a page.

A cell has one colour, marker and line style in every figure of a report. Figures are made without
pyplot, which would keep them open and look for a display; matplotlib is imported when the first
one is drawn.
"""

import io
import itertools
import math
import re
import statistics
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.summary import FIRST, Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (  # Okabe and Ito (2008), told apart by colour-blind readers; wine in place of yellow
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#882255",
)
MARKERS = "osDv^PX*"
LINES = ("-", "--", "-.", (0, (1, 1.2)))
GREY = "#666666"

CURVES = (
    "Validation score during training. Thick line: mean over all seeds that did not diverge; "
    "band: from the lowest to the highest of them. Both end where the first seed stops, because "
    "a mean over the seeds that are left would be another quantity; thin lines show every seed to "
    "its end. A filled circle is a seed that stopped because it had solved the task, a cross one "
    "that diverged."
)
LENGTHS = (
    "Test score against the length of the test sequences, without further training. Markers: mean "
    "over seeds that did not diverge, set a little apart so that all can be seen; bars: from the "
    "lowest to the highest seed."
)


class Style(NamedTuple):
    color: str
    marker: str
    line: Any


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """One for each label: rnn, lstm and gru have theirs in every report."""
    labels = list(dict.fromkeys(labels))
    slots = {name: i for i, name in enumerate(FIRST) if name in labels}
    free = (i for i in itertools.count() if i not in slots.values())
    for label in labels:
        if label not in slots:
            slots[label] = next(free)
    return {
        label: Style(COLORS[i % 8], MARKERS[i % 8], LINES[(i + i // 8) % 4])
        for label, i in slots.items()
    }


def learning_curves(arms: list[Arm], style: dict[str, Style]) -> str:
    """Validation score against updates for the arms of one task; "" before the first one."""
    arms = [arm for arm in arms if arm.curves()]
    if not arms:
        return ""
    figure, axes = _figure("updates", _metric_axis(arms))
    for arm in arms:
        _curve(axes, arm, style[arm.label])
    axes.set_xlim(left=0)
    if not any(arm.scale.higher_is_better for arm in arms if arm.finals):
        _scale(axes, [y for arm in arms for _, ys in arm.curves().values() for y in ys])
    chances = {row["chance"] for arm in arms for row in arm.rows if row["kind"] == "valid"}
    _level(axes, [(f"chance {chance:.4g}", chance) for chance in chances], GREY, "--")
    thresholds = {arm.threshold for arm in arms if arm.threshold is not None}
    _level(axes, [(f"solved {threshold:g}", threshold) for threshold in thresholds], "black", ":")
    return _svg(figure, axes, f"Learning curves on {arms[0].task}")


def score_by_length(arms: list[Arm], style: dict[str, Style]) -> str:
    """Test score against length; "" unless more than one length was tested."""
    arms = [arm for arm in arms if len(arm.tests()) > 1]
    if not arms:
        return ""
    figure, axes = _figure("length of the test sequences, steps", _metric_axis(arms))
    axes.set_xscale("log")
    lengths = sorted({length for arm in arms for length in arm.tests()})
    for i, arm in enumerate(arms):
        color, marker, line = style[arm.label]
        aside = 1.03 ** (i - (len(arms) - 1) / 2)
        tests = [[row["score"] for row in rows] for rows in arm.tests().values()]
        means = [statistics.fmean(scores) for scores in tests]
        bars = [
            [mean - min(scores) for mean, scores in zip(means, tests, strict=True)],
            [max(scores) - mean for mean, scores in zip(means, tests, strict=True)],
        ]
        axes.errorbar(
            [length * aside for length in arm.tests()],
            means,
            yerr=bars,
            color=color,
            marker=marker,
            linestyle=line,
            markersize=7,
            capsize=3,
            label=arm.label,
        )
    chances = {length: rows[0]["chance"] for arm in arms for length, rows in arm.tests().items()}
    axes.plot(lengths, [chances[length] for length in lengths], "--", color=GREY)
    _note(axes, f"chance {chances[lengths[-1]]:.4g}", chances[lengths[-1]], GREY)
    trained = arms[0].config["task"]["length"]
    axes.axvline(trained, color=GREY, linestyle=":", linewidth=1)
    shortest = arms[0].config["task"].get("min_length")
    span = f"{trained}" if shortest is None else f"{shortest} to {trained}"
    axes.annotate(
        f"trained on {span}",
        (trained, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        color=GREY,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    return _svg(figure, axes, f"Score by length on {arms[0].task}")


def _curve(axes: "Axes", arm: Arm, style: Style) -> None:
    color, marker, line = style
    stopped = {row["seed"] for row in arm.finals if row["status"] == "solved"}
    ends = dict.fromkeys(stopped, "o") | dict.fromkeys(arm.diverged, "x")
    for seed, (steps, scores) in arm.curves().items():
        axes.plot(steps, scores, color=color, linewidth=0.8, alpha=0.45)
        if end := ends.get(seed):
            axes.plot(
                steps[-1:], scores[-1:], end, color=color, markersize=7, markeredgewidth=2, zorder=4
            )

    curves = [curve for seed, curve in arm.curves().items() if seed not in arm.diverged]
    # Without any sound seed there is no mean, but the legend still names the arm.
    steps = min((steps for steps, _ in curves), key=len, default=[])
    columns = [*zip(*(scores[: len(steps)] for _, scores in curves), strict=True)]
    axes.plot(
        steps,
        [statistics.fmean(column) for column in columns],
        color=color,
        marker=marker,
        linestyle=line,
        linewidth=2,
        markersize=6,
        markevery=max(1, len(steps) // 8),
        label=arm.label,
    )
    axes.fill_between(
        steps, [*map(min, columns)], [*map(max, columns)], color=color, alpha=0.1, linewidth=0
    )


def _figure(x: str, y: str) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.8, 4.3), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def _metric_axis(arms: list[Arm]) -> str:
    """Known from the first seed that ended."""
    return next((arm.scale.axis for arm in arms if arm.finals), "score")


def _scale(axes: "Axes", scores: list[float]) -> None:
    """Losses over more than a factor of ten are read off a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    finite = [score for score in scores if math.isfinite(score)]
    if finite and min(finite) > 0 and max(finite) > 10 * min(finite):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _level(axes: "Axes", levels: list[tuple[str, float]], color: str, line: str) -> None:
    for text, value in levels:
        axes.axhline(value, color=color, linestyle=line, linewidth=1.2, zorder=1)
        _note(axes, text, value, color)


def _note(axes: "Axes", text: str, value: float, color: str) -> None:
    """Beside the right edge, where no curve runs."""
    axes.annotate(
        text,
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=color,
    )


def _svg(figure: "Figure", axes: "Axes", title: str) -> str:
    """SVG text, the same for the same figure, with ids of its own among others in the page."""
    from matplotlib import rc_context

    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.01), ncols=4, frameon=False, handlelength=3.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in a label is a dollar
    name = re.sub(r"\W+", "-", title.lower())
    file = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = f'<svg role="img" aria-label="{escape(title)}"' + svg[svg.index("<svg") + 4 :]
    # A page needs neither, and without them it names no address.
    svg = re.sub(r'<metadata>.*?</metadata>| xmlns(:xlink)?="[^"]*"', "", svg, flags=re.DOTALL)
    return re.sub(r'(id="|href="#|url\(#)', rf"\1{name}-", svg)
