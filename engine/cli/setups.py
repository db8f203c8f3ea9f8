"""The models and settings that `engine bench` is given: one to measure, or several to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from engine.cli import options
from engine.cli.commands import Argument, ModelPath, bundle
from engine.cli.completion import set_keys, targets
from engine.cli.hints import misuse
from engine.cli.input_files import STANDARD_INPUT, SUFFIXES, file_name
from engine.cli.load import Integers
from engine.cli.options import BuildOptions, DecMode


class Setup(NamedTuple):
    """A model and how it is built. name: sets it apart from the others."""

    name: str
    model: Path
    how: BuildOptions


@dataclass(frozen=True, slots=True)
class Setups:
    """All that the command line says of the models and their builds.

    threads: one number, or several that are measured one after the other. versus: settings, each
    of which makes another contender.
    """

    others: tuple[Path, ...] = ()
    targets: tuple[str, ...] = ("cpu",)
    device_id: int = 0
    threads: tuple[int, ...] = (0,)
    configs: tuple[Path, ...] = ()
    settings: tuple[str, ...] = ()
    versus: tuple[str, ...] = ()
    dec_key: str | None = None
    dec_mode: DecMode | None = None

    @property
    def first(self) -> BuildOptions:
        """How the first is built."""
        config = self.configs[0] if self.configs else None
        return BuildOptions(
            self.targets[0], self.device_id, self.threads[0], config, self.settings,
            self.dec_key, self.dec_mode,
        )  # fmt: skip

    @property
    def is_comparison(self) -> bool:
        """True where something is given twice, or another model."""
        several = (self.targets, self.configs, (None, *self.others), (None, *self.versus))
        return any(len(given) > 1 for given in several)

    def require_models(self) -> None:
        """Raise a usage error for an input's file where other models stand."""
        words = [str(path) for path in self.others if path.suffix.lower() in SUFFIXES]
        if words:
            raise click.UsageError(
                f"unexpected extra arguments ({' '.join(words)}); inputs go behind --input, "
                "several with commas between, or their folder"
            )

    def contenders(self, model: Path) -> list[Setup]:
        """Return all that are compared, the first first; one where nothing is given twice.

        Raises a usage error where more than one thing differs: nobody could tell by which.
        """
        first = self.first
        several: list[tuple[str, list[Setup]]] = [
            ("OTHER", _files(model, self.others, first)),
            ("--target", [Setup(t, model, replace(first, target=t)) for t in self.targets]),
            ("--config", [Setup(str(c), model, replace(first, config=c)) for c in self.configs]),
            ("--versus", _with_settings(model, self.versus, first)),
        ]
        given = [(option, setups) for option, setups in several if len(setups) > 1]
        if len(given) > 1:
            names = " and ".join(option for option, _ in given)
            raise misuse(names, "expected contenders that differ in one of these")
        if not given:
            return [Setup(file_name(model), model, first)]
        [(option, setups)] = given
        if len({setup.name for setup in setups}) < len(setups):
            raise misuse(option, "expected contenders that differ, got one of them twice")
        return setups


def _files(model: Path, others: Sequence[Path], how: BuildOptions) -> list[Setup]:
    if STANDARD_INPUT in map(str, others) and others:
        raise misuse("OTHER", "standard input holds one model, the first; give OTHER a file")
    return [Setup(file_name(path), path, how) for path in (model, *others)]


def _with_settings(model: Path, versus: Sequence[str], how: BuildOptions) -> list[Setup]:
    added = [Setup(text, model, replace(how, settings=(*how.settings, text))) for text in versus]
    return [Setup("without", model, how), *added]


def _several(*words: str, **settings: Any) -> Any:
    return click.option(*words, multiple=True, **settings)


of_setups = bundle(
    "setups",
    Setups,
    click.argument(
        "others",
        cls=Argument,
        metavar="[OTHER]...",
        nargs=-1,
        type=ModelPath(),
        help="Other models' files, to be compared with the first.",
    ),
    _several(
        "--target",
        "targets",
        default=("cpu",),
        metavar="TARGET",
        help="Where to run: cpu, gpu, ascend or an installed backend; several, with commas "
        "between, are tried in that order. Given again, the targets are compared.",
        shell_complete=targets,
    ),
    options.device_id,
    click.option(
        "--threads",
        type=Integers(0),
        default="0",
        metavar="N[,N...]",
        help="Host threads; 0 fits them to the machine. Several are measured one after the other.",
    ),
    _several(
        "--config",
        "configs",
        type=options.PATH,
        metavar="FILE",
        help="A configuration file. Given again, the files are compared.",
    ),
    options.settings,
    _several(
        "--versus",
        metavar="SEC.KEY=VALUE",
        help="Compare with the same model and this setting too. May be repeated.",
        shell_complete=set_keys,
    ),
    options.dec_key,
    options.dec_mode,
)
"""Adds the other models and the options of a build to a command, which gets them as one."""
