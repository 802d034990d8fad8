"""Sums up the work directory of a run or a comparison, finished or not: table, figures, findings.

    python -m experiments.report --workdir=runs/compare

Writes summary.csv and report.html, one page that needs nothing else, and prints the table. Exit
status: 0, or 2 for a directory that holds no results.
"""

import json
import statistics
from collections.abc import Iterable
from html import escape
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from experiments import cli
from experiments.errors import UserError
from experiments.figures import CURVES, LENGTHS, Style, learning_curves, score_by_length, styles
from experiments.findings import RULES, caution, findings, number, score
from experiments.progress import Terminal
from experiments.results import write_file
from experiments.summary import Arm, by_task, read_arms, summary_csv

HEADER = (
    "task",
    "cell",
    "test score",
    "chance",
    "metric",
    "seeds",
    "solved",
    "steps to solve",
    "params",
    "seconds",
    "status",
)
PRINTED = [name for name in HEADER if name not in ("task", "metric", "seconds")]
NUMBERS = {*HEADER} - {"task", "cell", "metric", "status"}
CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1.5rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 0.9rem; width: 100%; }
th, td { padding: 0.3rem 0.5rem; text-align: left; border-bottom: 1px solid #e2e2e2; }
td { white-space: nowrap; } td:nth-child(2) { white-space: normal;
       min-width: 7rem; overflow-wrap: anywhere; }
div.wide { overflow-x: auto; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.first td { border-top: 2px solid #999; }
.note { color: #555; font-size: 0.9rem; } .bad { color: #a40000; font-weight: 600; }
.dot { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 50%; }
figure { margin: 1.5rem 0; } svg { max-width: 100%; height: auto; }
pre { background: #f6f6f6; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; }
"""


def write_report(workdir: Path) -> None:
    """summary.csv and report.html in `workdir`, and the table on the terminal.

    Raises UserError for a directory without results, or one that cannot be written.
    """
    arms = read_arms(workdir)
    try:
        write_file(workdir / "summary.csv", summary_csv(arms))
        write_file(workdir / "report.html", page(arms))
    except OSError as error:
        raise UserError(f"--workdir={workdir}: {error.strerror or error}") from error
    show(arms)
    print(f"report in {workdir / 'report.html'}")


def show(arms: list[Arm]) -> None:
    """Prints a table for each task, never narrower than its numbers need."""
    console = Terminal(highlight=False)
    for task, group in by_task(arms).items():
        axis = next((arm.scale.axis for arm in group if arm.finals), "no results yet")
        table = Table(
            title=Text(f"{task}: {axis}"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for name in PRINTED:
            table.add_column(name, justify="right" if name in NUMBERS else "left")
        for arm in group:
            shown = dict(zip(HEADER, cells(arm), strict=True))
            table.add_row(*(Text(shown[name]) for name in PRINTED))
        unbound = console.options.update(max_width=1000)
        console.width = max(console.width, console.measure(table, options=unbound).maximum)
        console.print(table)


def cells(arm: Arm) -> tuple[str, ...]:
    """What a reader sees of an arm, under HEADER."""
    steps = arm.steps_to_solve
    return (
        arm.task,
        arm.label,
        score(arm),
        number(arm.chance) if arm.finals else "",
        arm.metric,
        f"{len(arm.finals)}/{len(arm.seeds)}",
        "" if arm.solved is None else f"{arm.solved}/{len(arm.seeds)}",
        f"{statistics.median(steps):g}" if steps else "",
        "" if arm.params is None else str(arm.params),
        "" if arm.seconds is None else f"{arm.seconds:.1f}",
        arm.status,
    )


def page(arms: list[Arm]) -> str:
    """The whole of report.html. Every text from a config is escaped on its way in.

    In ASCII, with references for other characters, whatever encoding files have on this system.
    """
    style = styles(arm.label for arm in arms)
    tasks = by_task(arms)
    who = _names(style) if len(style) <= 4 else f"{len(style)} cells"
    title = f"{who} on {_names(tasks)}"
    devices = _names(row["device"] for arm in arms for row in arm.finals)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">Run on {escape(devices)}.</p>' if devices else "",
        "<h2>Findings</h2>",
        f"<p>{escape(caution(arms))}</p>",
        *(_task_findings(task, group) for task, group in tasks.items()),
        f'<p class="note">{escape(RULES)}</p>',
        "<h2>Table</h2>",
        _table(tasks, style),
        "<h2>Figures</h2>",
        *(_task_figures(task, group, style) for task, group in tasks.items()),
        "<h2>Configs</h2>",
        *(_config(arm) for arm in arms),
    ]
    body = "\n".join(part for part in parts if part)
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _task_findings(task: str, arms: list[Arm]) -> str:
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in findings(arms))
    lengths = arms[0].config["eval"]["lengths"]
    tested = f' <span class="note">tested at length {lengths[0]}</span>' if lengths else ""
    return f"<h3>{escape(task)}{tested}</h3>\n<ul>\n{items}\n</ul>"


def _table(tasks: dict[str, list[Arm]], style: dict[str, Style]) -> str:
    lines = ["<tr>" + "".join(_cell("th", name, name) for name in HEADER) + "</tr>"]
    for arms in tasks.values():
        for i, arm in enumerate(arms):
            dot = f'<span class="dot" style="background: {style[arm.label].color}"></span> '
            row = [_cell("td", *pair) for pair in zip(HEADER, cells(arm), strict=True)]
            row[1] = row[1].replace(">", f">{dot}", 1)
            if arm.status != "ok":
                row[-1] = row[-1].replace("<td", '<td class="bad"', 1)
            first = ' class="first"' if i == 0 else ""
            lines.append(f"<tr{first}>{''.join(row)}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(tag: str, column: str, text: str) -> str:
    kind = ' class="number"' if column in NUMBERS else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _task_figures(task: str, arms: list[Arm], style: dict[str, Style]) -> str:
    drawn = [(learning_curves(arms, style), CURVES), (score_by_length(arms, style), LENGTHS)]
    figures = [
        f'<figure>\n{svg}\n<figcaption class="note">{escape(caption)}</figcaption>\n</figure>'
        for svg, caption in drawn
        if svg
    ]
    return "\n".join([f"<h3>{escape(task)}</h3>", *(figures or ["<p>Nothing to draw yet.</p>"])])


def _config(arm: Arm) -> str:
    text = json.dumps(arm.config, indent=2)
    return (
        f"<details><summary>{escape(arm.task)}, {escape(arm.label)}</summary>\n"
        f"<pre>{escape(text)}</pre></details>"
    )


def _names(items: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(items))


def main(workdir: Path) -> int:
    write_report(workdir)
    return 0


if __name__ == "__main__":
    cli.start(main, workdir="runs/compare")
