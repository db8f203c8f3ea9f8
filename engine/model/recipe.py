"""Build a model: its plan, the signature that predict checks by, and the extensions around it."""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import ModelError
from engine.host.launched import is_launched
from engine.host.paths import absolute
from engine.wings import wing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.config.variable_weights import Declaration
    from engine.context import Context
    from engine.formats import ModelFile
    from engine.formats.opened import Array, FileVersion, OpenedSource
    from engine.model.sharing import Lending, Loan, Sharing
    from engine.plan import Plan, Targets
    from engine.plan.source_model import SourceModel
    from engine.plan.targets import Choice, Measure
    from engine.runtime.signature import Signature
    from engine.types import CancelToken, ModelSource, Predict, Progress
    from engine.weights.compile_cache import Unwritten
    from engine.weights.variables import VariableWeights

    Config = Mapping[str, Mapping[str, str]]

groups: dict[str, Sharing] = {}
"""Sharing of models that are still to be built, by the real path of their files."""

_BY_HANDLE = {"shareable_weight_pid_list", "shareable_weight_mem_handle"}


class Built(NamedTuple):
    """A model that has been built.

    predict: the plan's, inside the extensions that are on. updated: the weights that are constants
    of the plan and no more as they were loaded. forms: what holds its compiled forms where nobody
    else does. why_unshared: why its weights are not shared with the group that it is in. loan: its
    weights, lent to other processes; None where they are not. unwritten: its entry of the compile
    cache, which is still to be written; None for none. measure: see `Targets`.
    """

    plan: Plan
    signature: Signature
    predict: Predict
    updated: Mapping[str, Array] = MappingProxyType({})
    forms: object = None
    why_unshared: str = ""
    loan: Loan | None = None
    unwritten: Unwritten | None = None
    measure: Measure | None = None

    def close(self) -> None:
        """Free it once running predicts have ended; twice does nothing."""
        if self.loan is not None:
            self.loan.close()
        self.plan.pool.close()


def open_targets(
    context: Context,
    config: Config,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
    *,
    sharing: Sharing | None = None,
    profile_to: Path | None = None,
    chosen: Choice | None = None,
) -> Targets:
    """Return the targets of a build, for which the model is then opened, and built.

    sharing: what it has in common with other models; None for what is anyhow. profile_to: see
    BuildOptions. chosen: see Targets. Raises BackendError where no target can be had, ValueError
    for a setting.
    """
    from engine.plan import BuildOptions, Targets

    job = _job_of(context, config)
    options = BuildOptions(
        context,
        config,
        progress,
        cancel,
        share_workspace=sharing is not None and sharing.workspace,
        place=(0, 1) if job is None else (job.rank, job.world_size),
        open_ranks=lambda *plan: wing("open_ranks")(job, *plan),
        profile_to=profile_to,
    )
    return Targets(options, chosen)


def build(
    source: ModelSource,
    targets: Targets,
    path: str,
    variable_weights: Sequence[str] = (),
    *,
    in_place: bool = False,
    sharing: Sharing | None = None,
    by_handle: bool = False,
    is_resizable: bool = True,
    leaves_writing: bool = False,
) -> Built:
    """Build a model that was opened with `targets.suffixes`. path: how extensions know it.

    in_place: the backend may hold the variable weights, where nobody shares them. sharing: as for
    `open_targets`. by_handle: lend or borrow weights by a handle, where the
    configuration says so. is_resizable: who asks for predicts may resize it. leaves_writing: its
    entry of the compile cache may be left to be written afterwards, by the caller. A model whose
    predicts are measured is not kept in compiled form.
    """
    from engine.plan import build_plan
    from engine.runtime import extensions
    from engine.runtime.signature import Signature, quantized
    from engine.weights.compile_cache import CompileCache

    options, config = targets.options, targets.options.config
    shared = None if sharing is None else sharing.forms(config)
    own = CompileCache.of(config)
    cache = shared or own
    with ExitStack() as closing:
        lending: Lending | None = None
        if by_handle and any(not _BY_HANDLE.isdisjoint(keys) for keys in config.values()):
            lending = wing("lending")(config, cache, options.cancel)
        if lending is not None:
            closing.callback(lending.close)
        elif leaves_writing and shared is None:
            own.leave_writing()
        plan = build_plan(
            source,
            targets,
            variable_weights=variable_weights,
            in_place=in_place and sharing is None and lending is None,
            forms=None if options.profile_to else lending or cache,
        )
        try:
            inputs, outputs = plan.executable.inputs, plan.executable.outputs
            if (graph := plan.source.graph) is not None:
                inputs, outputs = quantized(inputs, graph.inputs), quantized(outputs, graph.outputs)
            is_compiled = graph is None  # by a backend, for the sizes that it has
            signature = Signature(inputs, outputs, is_rebuildable=is_resizable and not is_compiled)
            chosen = extensions.chosen(options.context, config)
            predict = plan.predict
            if chosen:
                predict = wing("wrapped")(plan, signature, path, chosen)
            loan = lending.finish(plan.source.name) if lending is not None else None
            built = Built(plan, signature, predict, loan=loan)
            if shared is None or sharing is None:
                return built._replace(unwritten=own.unwritten)
            return built._replace(forms=shared, why_unshared=sharing.why_unshared(plan, shared))
        except BaseException as error:
            plan.pool.close()
            if isinstance(error, ImportError):  # an element type that needs ml_dtypes
                raise ModelError(str(error)) from error
            raise


class Recipe:
    """A model's file and settings: to build it, and to build it anew (update.py).

    file: told its variable weights by the configuration, or by the caller: `names`. path: how
    extensions know it. weights: None where none are variable. sharing: what the model has in common
    with others. compiled: opens the file again, of a form that a backend compiled; None for a
    model. data_files: the files beside the model's that it was built of, as they were then. files:
    all that it was built of. is_resizable: see `build`. has_peers: other models change their
    weights with it. kept: sections that its conversion has declared.
    Not locked: the model builds one after the other.
    """

    def __init__(
        self,
        file: ModelFile,
        context: Context,
        config: Config,
        path: str = "",
        names: tuple[str, ...] = (),
    ) -> None:
        self.config = config
        self.path = path
        self.original: SourceModel | None = None
        self.compiled: Callable[[], OpenedSource] | None = None
        self.data_files: Mapping[str, FileVersion] = {}
        self.files: Mapping[str, FileVersion] = {}
        self.weights: VariableWeights | None = None
        self.sharing: Sharing | None = None
        self.is_resizable = True
        self.has_peers = False
        self.kept: Config = MappingProxyType({})
        self.context = context
        self.chosen: Choice | None = None
        self._file: ModelFile | None = file
        self._declaration = _declaration(config, names)
        if self._declaration is not None:
            file.vary(self._declaration.names)

    @property
    def provider(self) -> str:
        """Ascend's execution provider, as the context has it."""
        return self.context.ascend.provider

    @property
    def own_names(self) -> dict[str, str]:
        """Return the user's own names for variable weights, each with the model's."""
        return dict(self._declaration.own_names) if self._declaration else {}

    def build(self, progress: Progress | None, cancel: CancelToken | None) -> Built:
        """Build the model for the first time."""
        from engine.plan.source_model import data_files

        file = self._file
        assert file is not None, "it is built for the first time once"
        file.watch(cancel)
        file.keep_in(lambda: wing("lowered_forms")(self.config))
        if "tuned" in self.config:
            self.context, self.config = wing("tuned")(file, self.context, self.config)
        self._take_kept(file)
        declaration = self._declaration
        names = () if declaration is None or self.is_rebuilt else declaration.names
        targets = open_targets(self.context, self.config, progress, cancel, sharing=self.sharing)
        opened = file(targets.suffixes)
        self.files = self.data_files = data_files(file, opened)
        if file.path is not None and file.version is not None:
            self.files = {str(absolute(file.path)): file.version, **self.data_files}
        if opened.graph is None:
            path = None if file.path is None else absolute(file.path)
            self.compiled = partial(
                _opened_again, path, file.version, self.data_files, targets.suffixes
            )
        source = opened if declaration is None else self._declared(opened)
        if targets.is_unmeasured:
            is_alone = self.is_resizable and not self.has_peers and self.sharing is None
            targets = wing("chosen_targets")(source, targets, names, is_alone)
            # Settings to build it again with, for other sizes or weights.
            self.context, self.config = targets.options.context, targets.options.config
            self.chosen = targets.choice
        built = build(
            source,
            targets,
            self.path,
            names,
            in_place=self.is_in_place,
            sharing=self.sharing,
            by_handle=True,
            is_resizable=self.is_resizable,
            leaves_writing=declaration is None and file.is_onnx and not _has_ranks(opened, targets),
        )
        self.context = copy(self.context)  # its owner may change it for another model
        if self.original is None:
            self.original = self._original_of(opened)
        self._file = None
        return built._replace(measure=targets.measure)

    def _take_kept(self, file: ModelFile) -> None:
        """Take what the model's conversion has declared and this build has not."""
        if not file.is_onnx or (graph := file().graph) is None:
            return
        if not graph.metadata:
            return
        from engine.config import declared  # rare

        self.kept = declared.sections(graph.metadata)
        if self._declaration is None:
            self._declaration = declared.declaration(graph.metadata, self.config)
            if self._declaration is not None:
                file.vary(self._declaration.names)

    def _declared(self, source: OpenedSource) -> OpenedSource:
        """Return a model that was just opened as it is to be built, with the weights declared."""
        from engine.plan.weights import check_declared
        from engine.weights.variables import VariableWeights, check_rebuildable

        declaration, file = self._declaration, self._file
        assert declaration is not None
        assert file is not None
        if source.variables:
            self.weights = VariableWeights(source, declaration)
        if not self.is_rebuilt:
            return source
        check_declared(source, declaration.names)
        self.original = self._original_of(source)
        check_rebuildable(source, self.original is not None and self.original.can_be_had)
        return file.with_constants()

    def _original_of(self, source: OpenedSource) -> SourceModel | None:
        """Return what is kept of where the model came from; None for a compiled form."""
        from engine.formats.opened import OpenedSource
        from engine.plan.source_model import SourceModel

        assert self._file is not None
        if source.graph is None or not isinstance(source, OpenedSource):
            return None
        folder = self.config.get("model_file", {}).get("mindir_path")
        names = () if self._declaration is None else self._declaration.names
        return SourceModel(self._file, source, Path(folder) if folder else None, names)

    def opened_again(self) -> OpenedSource:
        """Return the model as its file has it, its variable weights as inputs.

        Raises ModelError where it has no graph, changed, or is kept nowhere: a large one in memory,
        or encrypted.
        """
        if self.original is None:
            raise ModelError("its graph is not known")
        return self.original.declared()

    @property
    def is_rebuilt(self) -> bool:
        """True where an update builds the model anew."""
        return self._declaration is not None and self._declaration.mode == "rebuild"

    @property
    def is_in_place(self) -> bool:
        """True where a backend that can exchange the weights itself is to hold them.

        With peers, all of which change or none does, the core holds them: a backend may fail.
        """
        declaration = self._declaration
        return declaration is not None and declaration.mode == "auto" and not self.has_peers


def _has_ranks(source: ModelSource, targets: Targets) -> bool:
    """Return whether a model is one rank's of several, or has collectives."""
    from engine.formats.collectives import is_collective

    nodes = source.graph.nodes if source.graph is not None else ()
    return targets.options.world_size > 1 or any(
        is_collective(node.op_type, node.domain) for node in nodes
    )


def _opened_again(
    path: Path | None,
    version: FileVersion | None,
    files: Mapping[str, FileVersion],
    suffixes: Mapping[str, str],
) -> OpenedSource:
    """Open a compiled form's file again. Raises ModelError where there is none, or it changed."""
    from engine.formats import ModelFile
    from engine.plan.source_model import data_files

    if path is None:
        raise ModelError("it was compiled and is in memory; build it from its file")
    file = ModelFile(path)
    source = file(suffixes)
    if file.version != version or data_files(file, source) != files:
        raise ModelError(f"{path}: changed since the model was built; build it again", str(path))
    return source


def _declaration(config: Config, names: tuple[str, ...]) -> Declaration | None:
    """Return the declaration of variable weights; None where there is none."""
    if not names and not any("variable_weights" in key for keys in config.values() for key in keys):
        return None
    from engine.config.variable_weights import declaration_of  # rare

    declaration = declaration_of(config, names)
    return declaration if declaration.names else None


def _job_of(context: Context, config: Config) -> Any:
    """Return which rank of which job a model is for; None for no job, as of most processes."""
    rank = context.ascend.rank_id
    tables = [path for section in config.values() if (path := section.get("rank_table_file"))]
    return wing("job")(rank, tables) if rank or tables or is_launched() else None
