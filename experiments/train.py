"""Trains one config, all its seeds, and tests them.

    python -m experiments.train --config=configs/adding.py:lstm --config.train.steps=2000

The same command goes on with seeds that are not finished. Exit status: 0, 2 for a mistake in the
command or config, 3 if a seed diverged.
"""

import re
from pathlib import Path

from ml_collections import ConfigDict

from experiments import cli


def main(workdir: Path | None, config: ConfigDict) -> int:
    if "runs" in config:
        raise cli.UserError("this config is a comparison; use experiments.compare")
    if workdir is None:
        name = f"{config.task.get('set', config.task.name)} {config.label}"
        workdir = Path("runs", re.sub(r"[^\w.-]+", "_", name))
    cli.use_cores(config.train)
    from experiments.runs import run_one

    sound = run_one(config, workdir)
    print(f"results in {workdir}")
    return 0 if sound else cli.DIVERGED


if __name__ == "__main__":
    cli.start(main, workdir=None, config="configs/adding.py")
