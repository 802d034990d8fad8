"""Command lines: flags, one-line errors with exit status 2, and devices.

absl by itself answers a bad flag with exit status 1 and a traceback.
"""

import os
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from experiments.errors import UserError

DIVERGED = 3
"""Exit status when every run ended but a seed diverged."""
FAILED = 1
"""Exit status when a run of a comparison failed."""


def define_config(default: str) -> flags.FlagHolder:
    return config_flags.DEFINE_config_file(
        "config", default, "Python file with get_config(), and its argument after a colon."
    )


def start(main: Callable[[], int | None]) -> None:
    """Parses the flags, then runs `main` and exits with the status that it returns."""

    def run(_: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # JAX tells which accelerators it did not find
        try:
            status = main()
        except UserError as error:
            _refuse(str(error))
        except KeyboardInterrupt:
            print(
                "interrupted; the same command goes on with what is not finished", file=sys.stderr
            )
            sys.exit(130)
        sys.exit(status)

    app.run(run, flags_parser=_parse)


def use_cores(seeds: int) -> None:
    """One JAX device for each CPU core that a seed can use. Before JAX starts."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", max(1, min(seeds, cores or 1)))


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        rest = flags.FLAGS(list(argv))
    except Exception as error:  # config files are code: whatever they raise is the user's to see
        if isinstance(
            error, flags.Error | AttributeError | KeyError | TypeError | ValueError | OSError
        ):
            _refuse(" ".join(str(error).split()))
        raise
    if len(rest) > 1:
        _refuse(f"{rest[1]!r} is not a flag; flags look like --workdir=PATH")
    return rest


def _refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
