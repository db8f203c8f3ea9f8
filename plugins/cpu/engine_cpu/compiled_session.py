"""Sessions of compiled forms: opened from one that is there, or writing one first.

The content of its folder, and the check of it, are in compiled.py.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import CompiledFormError, ModelError
from engine.host.interrupts import raised_by_handler
from engine.host.memory import trim
from engine.types import CompileOptions, ModelSource
from engine_cpu.compiled import (
    GRAPH,
    WEIGHTS,
    CompiledForm,
    check,
    discard,
    finish,
    write_into,
)
from engine_cpu.options import session_options
from engine_cpu.prepared import Prepared
from engine_cpu.risk import NESTS, holds
from engine_cpu.runtime import ort
from engine_cpu.session import (
    CpuModel,
    give_files,
    graph_of,
    is_out_of_memory,
    make_session,
    session_of,
)

# Of what packing leaves free; given back, the first run would take as much anew, page by page.
_FIRST_RUN_BYTES = 8 << 20


def opened(source: ModelSource, options: CompileOptions, folder: Path) -> CpuModel:
    """Open a compiled form. Raises CompiledFormError."""
    graph = graph_of(source)
    form = check(folder, graph)
    ranks = None
    if form.ranks:
        from engine_cpu.prepare.ranks import RankCheck

        try:
            ranks = RankCheck.of_bytes(form.ranks, graph.inputs)
        except ValueError as error:
            text = f"compiled form {str(folder)!r}: {error}"
            raise CompiledFormError(text, str(folder)) from error
    session = _reopened(source, form, options)
    loaded = CpuModel(
        source, session, rewritten=form.rewritten, form=form, ranks=ranks, leads=form.leads
    )
    loaded.notes = form.notes
    return loaded


def saved_and_opened(
    loaded: CpuModel, prepared: Prepared, options: CompileOptions, folder: Path
) -> tuple[CpuModel | None, Exception | None]:
    """Make a session that writes its compiled form, and open that; None where it writes none.

    That is for a model that ONNX Runtime refuses as it is or does not write whole, and a disk that
    is full: then with the error.
    """
    from engine_cpu.common_weights import share

    source = loaded.source
    source_inputs = graph_of(source).inputs
    settings = session_options(options)
    write_into(settings, folder)
    source = give_files(source, settings)
    try:
        session = session_of(source, prepared, settings, options.cancel)
        del session  # its weights are in memory of its own; those of the form are mapped
        trim()
        waits = None if options.cancel is None else options.cancel.check
        share(folder, GRAPH, WEIGHTS, options.cache_folder, waits)
        ranks = b"" if loaded.ranks is None else loaded.ranks.to_bytes()
        form = finish(folder, graph_of(source), loaded.rewritten, ranks, loaded.leads, loaded.notes)
        if options.cancel is not None:
            options.cancel.check()
        session = _reopened(source, form, options)
    except BaseException as error:
        discard(folder)
        if (
            not isinstance(error, ModelError | OSError | ValueError)
            or raised_by_handler(error)
            or is_out_of_memory(error.__cause__)
        ):
            raise
        return None, error
    # A constant that the file lists among its inputs, and that is folded away, stays an input.
    if {item.name for item in session.get_inputs()} != {spec.name for spec in source_inputs}:
        discard(folder)
        return None, None
    loaded.source, loaded.session, loaded.form = source, session, form
    return loaded, None


def _reopened(
    source: ModelSource, form: CompiledForm, options: CompileOptions
) -> ort.InferenceSession:
    settings = session_options(options)
    # It is optimised; and what ran once is what is to run again, bit by bit.
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.execution_order == ort.ExecutionOrder.DEFAULT and not holds(
        graph_of(source), NESTS
    ):
        # The file has the main graph's nodes in the order in which they ran. By default ONNX
        # Runtime would take the branches of a graph in another, which was up to 5 % slower; this
        # order is the file's, but for Shape and Size, which come early. Not with subgraphs: their
        # nodes stand in the file as in the original, an order that may take more memory.
        settings.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    try:
        session = make_session(source, str(form.graph), settings, options.cancel)
    except ModelError as error:
        if is_out_of_memory(error.__cause__):
            raise
        text = f"compiled form {str(form.graph.parent)!r}: {error}"
        raise CompiledFormError(text, str(form.graph.parent)) from error
    trim(_FIRST_RUN_BYTES)
    return session
