"""The command `engine`: joins the commands, and turns errors into one line and an exit status."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click
from click.shell_completion import shell_complete

import engine
from engine.cli import completion
from engine.cli.commands import LateGroup
from engine.cli.hints import unknown_option
from engine.cli.input_files import of_commands
from engine.cli.interrupt import interrupted, leave, was_interrupted
from engine.cli.output import Talk, as_json, drop, line, note, plain, set_talk, talk
from engine.config.wording import own_text

EPILOG = """\b
Examples:
  engine run model.onnx --input image=photo.npy
  engine inspect model.onnx --target cpu
  engine bench model.onnx
  engine compare model.onnx --a cpu --b reference
  engine diff model.onnx --a gpu --b cpu
  engine explain model.onnx --html model.html
  engine convert model.onnx net
  engine slice model.onnx --tp 2 --out slices
  engine plugins
  engine doctor

\b
Exit status:
  0    done
  1    the engine refused or failed; one line on standard error says why
  2    wrong usage
  130  interrupted; 143 and 129 by SIGTERM and SIGHUP

\b
Environment:
  ENGINE_DEBUG=1  show the traceback of an error
  ENGINE_TARGET=cpu  run there, whatever --target says
  ENGINE_DEC_KEY=@FILE  the key of encrypted models
  ENGINE_CACHE_DIR=DIR, ENGINE_CACHE=on|wait|read|off
    the compile cache: see engine cache --help
  NO_COLOR=1  plain text: no colours, nothing bold"""


_COMMANDS = {
    "bench": "engine.cli.bench:bench",
    "cache": "engine.cli.cache:cache",
    "compare": "engine.cli.compare:compare",
    "diff": "engine.cli.diff:diff",
    "doctor": "engine.cli.doctor:doctor",
    "explain": "engine.cli.explain:explain",
    "inspect": "engine.cli.inspect:inspect",
    "plugins": "engine.cli.plugins:plugins",
    "run": "engine.cli.run:run",
}


@click.group(
    "engine",
    cls=LateGroup,
    late=_COMMANDS,
    has_entries=True,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 100,
    },
)
@click.version_option(
    engine.__version__,
    prog_name="engine",
    message="%(prog)s %(version)s",
    help="Print the version.",
)
@click.pass_context
def app(context: click.Context) -> None:
    """Run a trained model on any hardware, at any scale."""
    if context.invoked_subcommand is None:
        line(context.get_help())
        context.exit(2)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; users' errors leave no traceback."""
    _prepare_streams()
    set_talk(Talk.NORMAL)
    try:
        with _messages_to_stderr():
            status = _run(arguments)
        sys.stdout.flush()  # here a reader that went away can still be noticed
    except BrokenPipeError:  # what reads our output has had enough: not an error
        drop(sys.stdout)
        status = 0
    except OSError as error:  # a full disk, seen only when what was printed is flushed
        drop(sys.stdout)
        status = _failed(error)
    except KeyboardInterrupt:  # while what reads our output makes us wait
        drop(sys.stdout)
        status = _interrupted()
    leave(status)
    return status


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us (">&-"): what is printed is dropped
            setattr(sys, name, _nowhere())
        elif isinstance(stream, io.TextIOWrapper):
            # Where only ASCII can be printed, a name in another script is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get(completion.VARIABLE):  # a shell asks us; its user is in the middle of a line
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # for as long as we run


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if instruction := os.environ.get(completion.VARIABLE):
            return shell_complete(app, {}, "engine", completion.VARIABLE, instruction)
        # Not app.main(): it would answer Ctrl-C and a closed pipe in its own way.
        with app.make_context("engine", list(words)) as context:
            app.invoke(context)
    except BrokenPipeError:
        raise
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        line(error.format_message())
        return 2
    except click.UsageError as error:
        return _misused(error, _wants_json(words))
    except KeyboardInterrupt:
        return _interrupted()
    except (engine.EngineError, ValueError, TypeError, OSError, ImportError) as error:
        return _interrupted() if was_interrupted() else _failed(error, "", _wants_json(words))
    except MemoryError as error:
        return _failed(error, "out of memory: ", _wants_json(words))
    except Exception:  # CPython 3.11 makes a RuntimeError of what interrupts a class statement
        if was_interrupted():
            return _interrupted()
        raise
    return 0


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, also one that cannot be parsed."""
    command = next((word for word in words if not word.startswith("-")), "")
    return "--json" in words and command != "launch"  # whose words are a program's


def _failed(error: BaseException, prefix: str = "", is_json: bool = False) -> int:
    is_debugged = os.environ.get("ENGINE_DEBUG", "") not in ("", "0")
    if is_debugged or talk() is Talk.VERBOSE:
        import traceback

        traceback.print_exception(error)
    text = " ".join(_said(error).split()) or type(error).__name__
    note(f"error: {prefix}{plain(text)}")
    if is_json:
        facts = {
            name: value
            for name, value in getattr(error, "__dict__", {}).items()
            if value
            and not name.startswith("_")
            and isinstance(value, str | int | float | tuple | list | dict)
        }
        _print_error(type(error).__name__, f"{prefix}{text}", facts)
    return 1


def _print_error(kind: str, message: str, facts: Mapping[str, Any]) -> None:
    """Print an error as the one JSON object of a command that was to print JSON."""
    try:
        as_json({"error": {**facts, "type": kind, "message": message}})
        sys.stdout.flush()
    except OSError:  # it may be what has failed
        drop(sys.stdout)


def _said(error: BaseException) -> str:
    """Return an error's text, without the number of the operating system's errors.

    Without the method that failed, too: whoever types a command called none.
    """
    if isinstance(error, OSError) and error.strerror:
        # Only what is printed has no name, and only that is written without one.
        is_printed = error.filename is None and error.errno == errno.ENOSPC
        name = "standard output" if is_printed else error.filename
        if name is not None:
            return f"{name}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return of_commands(own_text(error))


def _misused(error: click.UsageError, is_json: bool) -> int:
    if isinstance(error, click.NoSuchOption):
        text = unknown_option(error)
    else:
        text = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx is not None else "engine"
    note(f"error: {plain(text[:1].lower() + text[1:])}")
    note(f"help: {command} --help")
    if is_json:
        _print_error("UsageError", text[:1].lower() + text[1:], {"help": f"{command} --help"})
    return 2


def _interrupted() -> int:
    note("interrupted")
    return interrupted()


class _Messages(logging.Handler):
    """Prints what the engine logs as "warning: ..." on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {plain(of_commands(record.getMessage()))}")


@contextmanager
def _messages_to_stderr() -> Iterator[None]:
    """Show what the engine logs and warns of as one line each, without Python's source lines."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        note(f"warning: {plain(str(message))}")

    log, handler = logging.getLogger("engine"), _Messages()
    log.addHandler(handler)
    level = log.level
    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before
        log.removeHandler(handler)
        log.setLevel(level)
