"""Command lines: flags, one-line errors with exit status 2, and devices.

Flags are defined when a command starts, not when its module is imported, so that notebooks can
import anything. absl by itself answers a bad flag with exit status 1 and a traceback.
"""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from experiments.errors import CLOSED, UserError, enough_memory, one_of
from experiments.signals import said

DIVERGED = 3
"""Exit status when every run ended but a seed diverged."""
FAILED = 1
"""Exit status when a run of a comparison failed."""


CONFIG = re.compile(r"--?config=")
FIELD = re.compile(r"--?(?:no)?config\.([\w.]+)(=.*)?", re.DOTALL)
NONE = re.compile(r"--?config\.([\w.]+)=None")
DEFINE: dict[type, Callable[..., Any]] = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}


class Option(NamedTuple):
    """A flag of one command; its value is passed to `main` by its name."""

    kind: type  # str, int, float or bool
    default: Any
    help: str


def start(
    main: Callable[..., int],
    *,
    workdir: str | None,
    config: str | None = None,
    options: dict[str, Option] | None = None,
) -> None:
    """Runs `main(workdir)`, or `main(workdir, config)`, and exits with the status it returns.

    workdir  the default, None lets the config decide
    config   the default config file, where the command takes one
    options  further flags, passed on as keyword arguments
    """
    options = options or {}
    keep_programs()

    def parse(argv: Sequence[str]) -> list[str]:
        try:
            flags.DEFINE_string("workdir", workdir, "Directory of the results.")
            for name, option in options.items():
                DEFINE[option.kind](name, option.default, option.help)
            if config:
                config_flags.DEFINE_config_file(
                    "config",
                    None,
                    f"File with get_config() and, after a colon, its argument. Default: {config}",
                )
            # ml_collections looks for overrides in sys.argv alone, where flag files are folded.
            given = flags.FLAGS.read_flags_from_files(list(argv[1:]))
            sys.argv = [argv[0], *_last_ones(given)]
            nones = [a for a in sys.argv if NONE.fullmatch(a)]  # no parser of a type knows None
            sys.argv = [a for a in sys.argv if a not in nones]
            names = {a.split("=")[0].lstrip("-") for a in sys.argv if a.startswith("-")}
            if names & {"help", "helpshort", "h"}:
                _help(options)
            if config and "config" not in names:
                sys.argv.insert(1, f"--config={config}")
            for file in (a.split("=", 1)[1] for a in sys.argv if CONFIG.match(a)):
                _check_file(file.partition(":")[0])
            rest = flags.FLAGS(sys.argv)
            if config and not isinstance(flags.FLAGS.config, ConfigDict):
                getattr(flags.FLAGS.config, "lock", None)  # a missing file raises only now
                raise ValueError("get_config() of the --config file must return a ConfigDict")
            for path in (NONE.fullmatch(a) for a in nones):
                assert path is not None
                _set_none(flags.FLAGS.config, path[1].split("."))
        except Exception as error:  # a config is code: whatever it raises is the user's to mend
            _refuse(_one_line(error))
        if len(rest) > 1:
            _refuse(f"{rest[1]!r} is not a flag; flags look like --workdir=PATH")
        return rest

    def run(_: Sequence[str]) -> None:
        logging.set_verbosity(logging.ERROR)  # JAX and orbax tell much that is no news
        if flags.FLAGS.workdir == "":
            _refuse("--workdir is empty; give a directory")
        given: list[Any] = [Path(flags.FLAGS.workdir) if flags.FLAGS.workdir else None]
        if config is not None:
            given.append(flags.FLAGS.config)
        guarded(lambda: main(*given, **{name: flags.FLAGS[name].value for name in options}))

    app.run(run, flags_parser=parse)


def _check_file(path: str) -> None:
    """UserError with the nearest name for a file that is not there, but others beside it are."""
    beside = sorted(str(file) for file in Path(path).parent.glob("[!_]*.py"))
    if beside and not Path(path).exists():
        one_of("--config", path, beside)


def _last_ones(argv: list[str]) -> list[str]:
    """Without the flags of fields that come again: of a tuple, ml_collections would add them up."""
    kept: list[tuple[str, list[str]]] = []
    rest = [*argv]
    while rest:
        words = [rest.pop(0)]
        found = FIELD.fullmatch(words[0])
        name = found[1] if found else ""
        if found and not found[2] and rest and not rest[0].startswith("--"):
            words.append(rest.pop(0))  # its value
        kept = [one for one in kept if not name or one[0] != name] + [(name, words)]
    return [word for _, words in kept for word in words]


def _set_none(config: ConfigDict, path: list[str]) -> None:
    for i, name in enumerate(path):
        if not isinstance(config, ConfigDict) or name not in config:
            raise ValueError(f"no such config field: config.{'.'.join(path[: i + 1])}")
        if i + 1 < len(path):
            config = config[name]
    if isinstance(config[path[-1]], tuple):
        raise ValueError(f"config.{'.'.join(path)}=None must be a tuple; () is an empty one")
    config[path[-1]] = None


def guarded(main: Callable[[], int | None]) -> NoReturn:
    """Exits with the status that `main` returns; with one line where it raises what is foreseen.

    130 after SIGINT and 143 after SIGTERM: what was finished is saved, and the same command goes
    on from there. 141, without a word, where nobody reads standard output any more.
    """
    try:
        with enough_memory():
            status = main()
        sys.stdout.flush()  # Python itself would find it closed too late for a status
        sys.exit(status)
    except BrokenPipeError:
        status = CLOSED
    except (UserError, OSError) as error:  # a full disk, for one
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        print(said(number), file=sys.stderr)
        status = 128 + number
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)  # threads may be at work, on a program or a file; nobody waits for them


def keep_programs() -> None:
    """Compiled programs are kept below the user's cache directory, so that a second start has them.

    Unless JAX_COMPILATION_CACHE_DIR names a place, or "" for none. Read by JAX when it is imported.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    place = cache / "seqmodels" / "programs"
    with contextlib.suppress(OSError, RuntimeError):  # no such directory can be had, or no home
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            place.mkdir(parents=True, exist_ok=True)
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(place)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def use_cores(*trains: ConfigDict) -> None:
    """One JAX device for each seed and share of its batches, for the largest of these
    `config.train`, up to two for each CPU core; cores that seeds leave over share batches, where
    `shards` leaves it open. Before JAX starts.

    More devices than cores even out the work: three seeds on two cores take a turn and a half as
    three threads, two turns as two.
    """
    import jax

    wanted = [t.seeds * (t.shards or max(1, cores() // max(1, t.seeds))) for t in trains]
    jax.config.update("jax_num_cpu_devices", max(1, min(max(wanted, default=1), 2 * cores())))


def cores() -> int:
    """CPU cores that this process may use."""
    has_mask = hasattr(os, "sched_getaffinity")
    return (len(os.sched_getaffinity(0)) if has_mask else os.cpu_count()) or 1


def _help(options: dict[str, Option]) -> NoReturn:
    guarded(lambda: _print_help(options))


def _print_help(options: dict[str, Option]) -> int:
    print(sys.modules["__main__"].__doc__)
    for name in ("config", "workdir", *options):
        if name in flags.FLAGS:
            print(f"  --{name}: {flags.FLAGS[name].help}")
    if "config" in flags.FLAGS:
        print("  --config.GROUP.FIELD=VALUE: any field of the config; see configs/base.py")
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, KeyError | AttributeError):  # from ConfigDict, with the nearest name
        while error.args and isinstance(error.args[0], Exception):
            error = error.args[0]
        return "no such config field: " + ", ".join(str(error.args[0]).splitlines())
    if "get_config() takes 0 positional arguments" in str(error):
        return "--config: this config takes no argument after a colon"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return f"{lines[0].split(': Error')[0]}: {lines[-1].split(': ', 1)[-1]}"
    if not isinstance(error, UserError | flags.Error | OSError | TypeError | ValueError):
        return f"--config file: {type(error).__name__}: {error}"
    return " ".join(lines)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
