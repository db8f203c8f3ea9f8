"""Rebatch pass: another batch size for a model that was exported with a fixed one.

Such a file has its batch in the shapes that Reshape, Expand and the like are given, and in
constants that were made for each sample. The nodes are walked in order, with the shapes of their
values as they are and as they are to be; where the second do not follow from the first, the
constant is replaced. That the result computes the same is then not proven but tested: on random
samples it must give what the original gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from engine.converter.batch_rewriter import Batches, BatchRewriter, CannotRebatch, dims_of
from engine.converter.comparison import Comparison
from engine.converter.graphs import refill, write_weights
from engine.converter.job import Job
from engine.converter.weights import total_bytes
from engine.converter.write import INLINE_BYTES
from engine.errors import InputError, ModelError, ModelStateError
from engine.formats.onnx.graphs import bodies, constants
from engine.host.folder import temporary_folder

MAPPED_BYTES = 256 << 20
"""Larger models are run from a file that is mapped: in memory it takes three times their size."""

_PHASE = "comparing with the original"


def rebatch(model: ModelProto, weights: ModelProto, batches: Batches, job: Job) -> list[str]:
    """Change the batch of `model`, a light copy of `weights`, and return notes on that.

    batches: by input, the size of its first axis and the one that it is to have, of one ratio.
    The original and the result run on the cpu backend; large ones from a temporary folder beside
    the output. The dims of inputs and outputs are set; all else that follows is for inference.
    Raises ModelError where it cannot be done or gives other results, BackendError where there is no
    cpu backend, Cancelled.
    """
    given = [value for value in model.graph.input if value.name not in constants(weights.graph)]
    grows = any(old < new for old, new in batches.values())
    _, *others = bodies(model)
    for body in others:
        if isinstance(body, GraphProto):
            _clear_shapes((*body.input, *body.output))
    try:
        rewriter = BatchRewriter(model, weights, given, batches)
        nodes = rewriter.nodes(job)
        comparison = Comparison(given, batches)
        with _weights_to_run(weights, job) as (tensors, folder):
            job.progress(_PHASE, 0, 2)
            try:
                before = comparison.run(model, tensors, grows, folder, job)
            except (ModelError, InputError, ModelStateError) as error:
                raise CannotRebatch(
                    f"as it is it does not run, to compare with: {error}"
                ) from error
            job.progress(_PHASE, 1, 2)
            declared = _replace_nodes(model, nodes, rewriter.added, batches)
            after = comparison.run(model, tensors, not grows, folder, job)
            job.progress(_PHASE, 2, 2)
        difference = comparison.difference(before, after)
        if difference:
            raise CannotRebatch(difference)
    except (CannotRebatch, ModelError, InputError, ModelStateError) as error:
        raise _cannot_rebatch_error(given, batches, str(error), job) from error
    for output, kind in zip(model.graph.output, declared, strict=True):
        shapes = before[0][output.name].shape, after[0][output.name].shape
        for dim, old, new in zip(kind.tensor_type.shape.dim, *shapes):
            if old != new:
                dim.dim_value = new
        output.type.CopyFrom(kind)
    return [
        f"the fixed batch of {_describe_changes(batches)}: {len(rewriter.added)} constants "
        "exchanged; on random samples the cpu backend gives what it gives for the original"
    ]


@contextmanager
def _weights_to_run(
    model: ModelProto, job: Job
) -> Iterator[tuple[Iterable[TensorProto], Path | None]]:
    """Yield the weights to run a model with; those of a large one are in a temporary file."""
    size = total_bytes(model)
    if size <= (INLINE_BYTES if job.is_secret else MAPPED_BYTES):
        yield model.graph.initializer, None
        return
    if job.is_secret:
        raise CannotRebatch("it is encrypted, and too large to be run without writing it to disk")
    with temporary_folder(".converting-", job.output_file.parent) as folder:
        yield write_weights(model, folder / "weights"), folder


def _replace_nodes(
    model: ModelProto, nodes: list[NodeProto], added: list[TensorProto], batches: Batches
) -> list[TypeProto]:
    """Replace a model's nodes and batch sizes, and clear output shapes; return the old types."""
    graph = model.graph
    refill(graph.node, nodes)
    graph.initializer.extend(added)
    for value in graph.input:
        if value.name in batches:
            value.type.tensor_type.shape.dim[0].dim_value = batches[value.name][1]
    declared = []
    for output in graph.output:
        declared.append(TypeProto())
        declared[-1].CopyFrom(output.type)
    _clear_shapes(graph.output)
    return declared


def _clear_shapes(values: Iterable[ValueInfoProto]) -> None:
    """Drop declared shapes: the batch may be in them."""
    for value in values:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _describe_changes(batches: Batches) -> str:
    return ", ".join(f"{name!r} from {old} to {new}" for name, (old, new) in batches.items())


def _cannot_rebatch_error(
    given: Sequence[ValueInfoProto], batches: Batches, reason: str, job: Job
) -> ModelError:
    olds = {old for old, _ in batches.values()} - {1}
    others = [
        repr(value.name)
        for value in given
        if value.name not in batches and (dims_of(value.type) or (None,))[0] in olds
    ]
    hint = f"give {', '.join(others)} another batch too, or " if others else ""
    return job.error(
        f"the batch is fixed in the model, and changing that of "
        f"{_describe_changes(batches)} fails: {reason}; {hint}export the model with a dynamic "
        "batch axis"
    )
