"""`engine cache`: shows, explains, awaits, verifies and prunes the compile cache."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine import Context
from engine.cli import options
from engine.cli.build import (
    decryption_of,
    parse_settings,
    parse_targets,
    refuse_unknown,
    require_file,
)
from engine.cli.commands import Group
from engine.cli.hints import misuse
from engine.cli.output import as_json, attributes, counted, fields, line, note, plain, size, table
from engine.cli.progress import progress
from engine.config.text import duration
from engine.errors import ModelError
from engine.weights.compile_cache import IS_SECRET, CompileCache
from engine.weights.location import CacheUnusable, default_folder
from engine.weights.store import Entry, Store

if TYPE_CHECKING:
    from engine.report.choice.evidence import Evidence

EPILOG = """\b
Examples:
  engine cache
  engine cache why bert.onnx
  engine cache choices bert.onnx
  engine cache wait
  engine cache verify
  engine cache prune --max-size 20GB

A model with 8 MB of weights or more is optimised once per machine; later builds of it map what was
made then, which is about twice the weights. ENGINE_CACHE_DIR is the folder, ENGINE_CACHE=off turns
the cache off, ENGINE_CACHE=read makes nothing new. An entry is written after the build, by a
process of its own; with ENGINE_CACHE=wait, before the build returns. Encrypted models are never in
the cache."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

folder_option = click.option(
    "--folder", type=options.PATH, metavar="DIR", help="The cache's folder, if not the usual one."
)


@click.group("cache", cls=Group, epilog=EPILOG, invoke_without_command=True)
@folder_option
@options.json
@click.pass_context
def cache(context: click.Context, folder: Path | None, json: bool) -> None:
    """Show, explain, await, verify and prune the compile cache."""
    if context.invoked_subcommand is None:
        _list(folder, json)
    else:
        context.obj = folder, json


def _shared(function: Callable[..., None]) -> Callable[..., None]:
    """Give a subcommand --folder and --json, which may also stand before its name."""

    @folder_option
    @options.json
    @click.pass_context
    def command(context: click.Context, /, folder: Path | None, json: bool, **values: Any) -> None:
        given_folder, given_json = context.obj or (None, False)
        function(folder=folder or given_folder, json=json or given_json, **values)

    command.__doc__ = function.__doc__
    # click keeps the options of a function in this attribute.
    command.__click_params__ += getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return command


@cache.command("ls", epilog=EPILOG)
@_shared
def list_command(folder: Path | None, json: bool) -> None:
    """List the entries, the latest used first: the same as `engine cache`."""
    _list(folder, json)


def _list(folder: Path | None, json: bool) -> None:
    store = _store(folder)
    entries = store.entries()
    total_bytes = store.nbytes
    if json:
        values = [_values(entry) for entry in entries]
        as_json({"folder": str(store.folder), "bytes": total_bytes, "entries": values})
        return
    if not entries:
        line(f"{plain(str(store.folder))}: no entries")
        return
    table(
        "",
        ("model", "backend", ">size", "used", "entry"),
        [
            (
                entry.title,
                entry.identity.key.get("backend", ""),
                size(entry.nbytes),
                _ago(entry.used),
                entry.folder.name,
            )
            for entry in entries
        ],
    )
    line()
    line(f"{counted(len(entries), 'entry').replace('entrys', 'entries')}, {size(total_bytes)} in "
         f"{plain(str(store.folder))}")  # fmt: skip


@cache.command("why", epilog=EPILOG)
@options.model
@options.target
@options.settings
@_shared
def why(
    model: Path, target: str, settings: tuple[str, ...], folder: Path | None, json: bool
) -> None:
    """Explain why the next build of a model is warm, or is not."""
    from engine.backends import find_target
    from engine.plan.options import BuildOptions
    from engine.plan.targets import targets_of
    from engine.report.cache_state import Explanation, explain

    require_file(model)
    config = parse_settings(settings)
    context = Context()
    context.target = parse_targets(target)
    refuse_unknown(config, context)
    if folder is not None:
        config.setdefault("common_context", {})["model_cache_dir"] = str(folder)
    [first, *_], _, _ = targets_of(context)
    chosen = find_target(first)
    build_options = BuildOptions(context, config)
    backend = build_options.opened(chosen.backend)
    decryption = decryption_of(model)
    if decryption.encryption:  # its key would not change that
        said = Explanation(IS_SECRET)
    else:
        source = decryption.file(backend.info.suffixes)
        compile_options = build_options.of(backend, chosen, source)
        with _usable():
            said = explain(CompileCache.of(config), backend, source, compile_options)
    if json:
        as_json(
            {
                "warm": said.is_warm,
                "reason": said.reason,
                "entry": _values(said.entry) if said.entry else None,
                "others": [
                    {
                        **_values(other.entry),
                        "differs": {
                            name: {"entry": had, "now": now}
                            for name, (had, now) in other.names.items()
                        },
                    }
                    for other in said.others
                ],
            }
        )
        return
    line(f"{plain(str(model))}: the next build is {'warm' if said.is_warm else 'cold'}: "
         f"{said.reason}")  # fmt: skip
    if said.entry:
        fields({"entry": said.entry.folder.name, "size": size(said.entry.nbytes)})
    for other in said.others:
        table(
            f"entry {other.entry.folder.name} differs",
            ("what", "entry", "now"),
            [(name, had or "-", now or "-") for name, (had, now) in other.names.items()],
        )


@cache.command("choices", epilog=EPILOG)
@options.model
@_shared
def choices(model: Path, folder: Path | None, json: bool) -> None:
    """Show what target auto has tried for a model, and what it chose.

    One choice for each machine, version and setting with which the model was built.
    """
    from engine.report.choice.keeping import all_of

    require_file(model)
    decryption = decryption_of(model)
    if decryption.encryption:
        found = []
    else:
        with _usable():
            found = all_of(decryption.file(), CompileCache(folder))
    if json:
        as_json({"model": str(model), "choices": [evidence.to_json() for evidence in found]})
        return
    if not found:
        line(f"{plain(str(model))}: nothing is kept; a build with target auto tries the backends")
    for evidence in found:
        measured = any(trial.error is not None for trial in evidence.trials)
        table(
            f"{evidence.chosen}, {_ago(evidence.created)}: {evidence.reason}{_again(evidence)}",
            ("tried", ">time", ">default", ">ratio", *(">error",) * measured, "why not"),
            [
                (
                    str(trial.setup),
                    "" if trial.seconds is None else duration(trial.seconds),
                    "" if trial.default_s is None else duration(trial.default_s),
                    "" if trial.ratio is None else f"{trial.ratio:.3f}",
                    *("" if trial.error is None else f"{trial.error:.1e}",) * measured,
                    trial.why_not,
                )
                for trial in evidence.trials
            ],
        )


@cache.command("wait", epilog=EPILOG)
@_shared
def wait(folder: Path | None, json: bool) -> None:
    """Wait until all entries that are being written are there."""
    store = _store(folder)
    with _usable():
        store.wait()
    _list(folder, json)


@cache.command("verify", epilog=EPILOG)
@_shared
def verify(folder: Path | None, json: bool) -> None:
    """Hold the files of all entries against their digests; damaged entries are removed."""
    store = _store(folder)
    damaged: dict[str, str] = {}
    names = store.names()
    with progress() as show:
        for number, name in enumerate(names):
            if show is not None:
                show("verify", number, len(names))
            with _usable():
                if reason := store.verified(name):
                    damaged[name] = reason
    if json:
        as_json({"verified": len(names), "damaged": damaged})
    else:
        line(f"{len(names)} verified, {len(damaged)} damaged and removed")
        for name, reason in damaged.items():
            line(f"  {name}: {plain(reason)}")


@cache.command("prune", epilog=EPILOG)
@click.option(
    "--max-size", required=True, metavar="SIZE", help="What may stay: 500MB, 20GB, or 0 for none."
)
@_shared
def prune(max_size: str, folder: Path | None, json: bool) -> None:
    """Remove entries, those unused for longest first, until the rest fits a size."""
    limit_bytes = _bytes(max_size)
    store = _store(folder)
    before_bytes = store.nbytes
    removed = store.prune(limit_bytes)
    kept, kept_bytes = store.entries(), store.nbytes
    freed_bytes = max(0, before_bytes - kept_bytes)
    if json:
        as_json(
            {
                "removed": [_values(entry) for entry in removed],
                "freed_bytes": freed_bytes,
                "kept": len(kept),
                "kept_bytes": kept_bytes,
            }
        )
        return
    line(f"{len(removed)} removed ({size(freed_bytes)}), {len(kept)} kept "
         f"({size(kept_bytes)})")  # fmt: skip
    if kept_bytes > limit_bytes:
        note("note: more is kept than fits: it is being opened or written, or cannot be removed")


def _store(folder: Path | None) -> Store:
    with _usable():
        return Store(folder or default_folder())


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except CacheUnusable as error:
        raise ModelError(f"the compile cache cannot be used: {error}") from error


def _bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?[bB]?)\s*", text)
    unit = match[2].upper() if match else ""
    if match is None or (unit + ("" if unit.endswith("B") or not unit else "B")) not in _UNITS:
        raise misuse("--max-size", f"expected a size such as 500MB or 20GB, got {text!r}")
    if not unit and float(match[1]):  # meant in GB and taken in bytes, it would empty the cache
        raise misuse("--max-size", f"expected a size with its unit, such as {text.strip()}GB")
    return int(float(match[1]) * _UNITS[unit if unit in _UNITS else f"{unit}B"])


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "now"


def _again(evidence: Evidence) -> str:
    """Say from when on builds measure again, where they do so before anything changes."""
    if math.isinf(evidence.valid_s):
        return ""
    end = time.localtime(evidence.created + evidence.valid_s)
    return f"; not all was measured well: builds after {time.strftime('%F %R', end)} try again"


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry.folder.name,
        "model": entry.title,
        "digest": entry.identity.model,
        "key": entry.identity.key,
        "bytes": entry.nbytes,
        **attributes(entry, "created", "used"),
    }
