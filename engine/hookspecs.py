"""The hooks of a backend, version 1. With `types.py` this is the whole contract.

A backend is a module (or object) whose functions are marked with `hookimpl` and which an entry
point of group `engine.backends.v1` names:

    [project.entry-points."engine.backends.v1"]
    my_backend = "my_package"

The core opens it late, by name, and by itself, so hooks have one implementation
and one answer. An implementation may take fewer arguments than its spec, by the same names.
A parameter with a default is optional. Give it the same default. The core may leave it out.
The core calls hooks with everything checked: names, counts, dtypes, shapes and contiguity of
inputs, existence and bounds of model files. Vendor exceptions are translated once, here, into
`engine.errors` with `raise ... from`; any other exception that leaves a hook is reported to the
user as a fault of the backend. Messages are one line. A backend leaves alone what belongs to the
process: environment variables, signal handlers, the working folder, stdout and stderr.

Any thread may call any hook, and several at once; only an execution context, a communicator and
a loaded model are used by one thread at a time.

Importing the plugin must be quick and quiet: no vendor library is imported, no device touched,
nothing printed before `engine_devices`, `engine_diagnose`, `engine_load` or `engine_compile`.

Required: engine_backend, engine_devices, engine_load, engine_compile, engine_predict.
Expected: engine_diagnose. The rest is announced by `BackendInfo.capabilities`. A hook in PLANNED
would be one that the kit tests and this version of the core does not call yet: there is none.

A hook is a function: pluggy's wrappers (`wrapper=True`, `hookwrapper=True`) are refused. Whoever
wants to see a model's requests writes an observer (`engine.types.Observer`), and whoever wants to
stand around its predicts an extension (`engine.types.Extension`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pluggy

from engine.types import (
    BackendInfo,
    Capability,
    Check,
    Communicator,
    CommunicatorOptions,
    CompileOptions,
    Device,
    DeviceMemory,
    Devices,
    Done,
    DType,
    Executable,
    ExecutionContext,
    LoadedModel,
    ModelSource,
    PredictOptions,
    ReduceOp,
    SharedWeights,
    Value,
    Values,
)

PROJECT = "engine"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

REQUIRED = (
    "engine_backend",
    "engine_devices",
    "engine_load",
    "engine_compile",
    "engine_predict",
)

PLANNED: tuple[str, ...] = ()
"""Hooks that the core does not call yet."""

LEVEL = 4
"""How far this contract has grown: each version of the core that adds to it has a higher number.

The group's version and the level together are a contract's number: "contract 1.1". A plugin that
needs a level says so by `BackendInfo.level`.
"""

SUPPORTS = frozenset(
    {str(flag) for flag in Capability} | {"observers", "dtypes", "quantization", "arithmetic"}
)
"""What this core makes use of where a backend offers it, by name: its capabilities, and names that
later levels add. A plugin for several cores asks here, as in `"lora" in hookspecs.SUPPORTS`."""


# ------------------------------------------------------------------------------- what there is


@hookspec(firstresult=True)
def engine_backend() -> BackendInfo:
    """Return the manifest. Touches no device and no vendor library; takes microseconds."""


@hookspec(firstresult=True)
def engine_devices() -> Devices:
    """Find the devices that can be used now, or say why there is none and what to do.

    May import the vendor's library and touch the driver. Returns within seconds; never raises
    for a missing device, driver or library: that is an answer, not an error.
    """


@hookspec(firstresult=True)
def engine_diagnose() -> Sequence[Check]:
    """Check what the backend needs on this machine, in the order in which one would mend it.

    Driver, libraries, versions, devices, environment variables; each with its fix. Never raises.
    """


# ------------------------------------------------------------------------- one model, one device


@hookspec(firstresult=True)
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model into the backend's own form.

    source: `format` is one that `BackendInfo.formats` lists. It may outlive the call; its bytes
        and files do not change while the model lives.
    options: the same object that engine_compile gets.
    Returns the model's inputs and outputs in order, and the nodes that cannot run here. They are
    the same whether `source.compiled` is set or not; where it is, the graph is not parsed again.
    Raises ModelError naming the file and what is wrong in it, CompiledFormError where
    `source.compiled` cannot be used.
    """


@hookspec(firstresult=True)
def engine_compile(loaded: LoadedModel, options: CompileOptions) -> Executable:
    """Compile a loaded model for one device. May take minutes.

    loaded: from engine_load of this backend; not used afterwards.
    options: see CompileOptions; `options.progress` is called while it works, and
        `options.cancel` makes it stop soon with Cancelled, leaving nothing behind.
    Returns an executable that any thread may use, owned by the caller until `close()`.
    Raises ModelError for a model that cannot be compiled (unsupported nodes by name),
    CompiledFormError as engine_load does, BackendUnavailable where the device is gone or out of
    memory, ValueError for an option.
    """


@hookspec(firstresult=True)
def engine_predict(
    context: ExecutionContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    options: PredictOptions | None = None,
) -> Values:
    """Run the model once and block until the outputs are ready.

    Host arrays are complete on return; a DeviceBuffer is, or is ordered after its `stream`.

    context: from `executable.open_context()`; used by one thread at a time, not always the same.
    inputs: one value per `executable.inputs`, in order, with the declared dtype, C-contiguous,
        dims as declared. The dtype is that of `DType.numpy`, never numpy's other 64-bit integer.
        Axes of one symbol have one size; where they do not, because a model's file names them
        wrongly, the user was warned and the backend decides: it runs, or raises ModelError. Arrays
        may be read-only. With DEVICE_BUFFERS also DeviceBuffers of the executable's device, packed
        unless STRIDED_BUFFERS is announced: one
        whose stream is None is the caller's to write again on return, one with a stream through
        that stream. Not modified; read anew in every call. With `outputs` given, the very same
        list object as in the last such call means the same arrays in the same shapes, so what was
        bound for it still stands; that holds for `outputs` too.
    outputs: None, or a list with one entry per output: a buffer to fill in place (exactly the
        output's dtype and shape as far as it is known, packed; no two overlap, but one may overlap
        an input); None to have that one allocated; with DEVICE_BUFFERS a DeviceBuffer of the
        executable's device to fill, complete or ordered after its own stream on return, or that
        Device, to have it allocated there (InputError for what is no tensor of numbers). Memory is
        reused only where a buffer is given and for `CompileOptions.resident`: everything else
        returned is new and belongs to the caller.
    deadline_s: a moment of time.monotonic(), or None.
    options: what the user, or who shares the run, says of this predict alone; None, or left out,
        for nothing: then it may be cancelled as any other. Changes no result. With the capability
        PREDICT_OPTIONS it comes with every predict of a Model, so that `can_be_cancelled` is
        known. Left out of an isolated backend's. Since contract 1.4.
    Returns one value per `executable.outputs`, in order; given buffers are returned themselves
        (`outputs` itself, if every one was given).
    Raises DeadlineExceeded (if the backend announces DEADLINES; the context stays usable),
    Cancelled (see ExecutionContext.cancel), InputError for what only the runtime can know (a
    data-dependent shape that does not fit a given buffer), ModelError where the model itself fails
    on this data. An index out of range is such a failure. An exception that a signal handler raises
    meanwhile is let through, or is the cause of what is raised: the core finds it there and gives
    it to the user.
    """


@hookspec(firstresult=True)
def engine_predict_async(
    context: ExecutionContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    done: Done,
    options: PredictOptions | None = None,
) -> bool:
    """Begin a predict as engine_predict runs it, and return without waiting for its end.

    context: is this predict's until `done` was called; `cancel` and the deadline hold as there.
    inputs, outputs: are not changed, and are kept alive, until then. This core gives None for
        outputs.
    deadline_s: after it, as after `cancel`, `done` comes soon; the core gives a backend that can
        stop 10 s for that, then takes the predict for failed and never closes the context.
    done: to be called exactly once for each call that returned, in whatever thread, also before
        this returns: with the values that engine_predict would return, or with the exception that
        it would raise. The context is free before it is called. So no lock may be held: it may
        begin the next predict. A call after the first is ignored.
    options: as engine_predict's.
    Returns True. Raises what engine_predict raises where the predict does not begin; `done` is not
    called then. Takes no thread that the runtime does not need by itself.
    Capability: ASYNC_PREDICT. Since contract 1.3.
    """


# ---------------------------------------------------------------------------------- device memory
#
# Capability for all but the last: DEVICE_BUFFERS. Any thread may call.


@hookspec(firstresult=True)
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    """Allocate memory for one tensor; its contents are undefined.

    on_host: False for memory on the device: returns a complete DeviceBuffer with an `owner`. True
        for host memory that the device reaches without a further copy (page-locked): returns an
        array. Either is freed when nothing refers to it any more, in whatever thread that is.
    Raises BackendUnavailable where memory is short, saying how much was wanted.
    """


@hookspec(firstresult=True)
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    """Copy a tensor between the host and a device of this backend, or between its devices.

    source, target: same dtype and shape; at least one is a DeviceBuffer, packed unless
        STRIDED_BUFFERS is announced. No two elements of a target are one place in memory, and what
        lies between them stays as it is. The copy comes after what `source.stream` and
        `target.stream` have queued.
    stream: where the copy is queued, one of the target's device (of the source's where the target
        is on the host); both must live until that has come to it. None: it is complete on return.
    Returns True.
    """


@hookspec(firstresult=True)
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    """Make what is queued on stream `later` from now on wait for what is queued on `earlier` now.

    later: None makes the calling thread wait instead. Returns True.
    """


@hookspec(firstresult=True)
def engine_memory(device: Device) -> DeviceMemory:
    """Read how much memory a device has left now. Loads no model; may open the device.

    Raises BackendUnavailable where the device is gone. Capability: DEVICE_MEMORY. Since contract
    1.3.
    """


# ----------------------------------------------------------------------------------- compiled forms


@hookspec(firstresult=True)
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    """Give all that a compiled form depends on beside the model, as text by name.

    Versions of plugin, runtime and driver, the device's kind, options and threads where they
    matter, shapes; of several devices, how many and of which kinds, where the form is not for any.
    The core stores it beside the form, uses the form only where the key is equal, and
    otherwise says which of these names differ. The model's content, `device.id` and the
    format of the folder's name are the core's business.
    Cheap: it is asked for at every build. Raises BackendUnavailable where the device is gone.
    Capability: COMPILE_CACHE.
    """


# ---------------------------------------------------------------------------------- weights


@hookspec(firstresult=True)
def engine_share_weights(executable: Executable, pids: Sequence[int] | None) -> SharedWeights:
    """Lend an executable's weights to other compiles of the same model on the same device.

    executable: compiled with `CompileOptions.lend`: that they will be lent is known then.
    pids: None within this process, else the processes that may open them, enforced by the
        vendor's means where it has such.
    Returns what goes into `CompileOptions.shared_weights` there: `digest` is the core's to fill in.
        Other processes get the files as descriptors open for reading, under `/proc/self/fd`; they
        read them while they compile. `owner.close()` is called when the lender's model is closed.
        The borrower never writes.
    Raises BackendUnavailable where this executable's weights cannot be lent, saying why.
    Capability: SHARE_WEIGHTS.
    """


@hookspec(firstresult=True)
def engine_update_weights(
    executable: Executable, weights: Mapping[str, Value], additive: bool
) -> bool:
    """Exchange weights between two predicts, in place.

    What a backend may offer for a model that is one executable, and changes this executable alone.
    The core calls it, from contract 1.3 on, where the model shares its weights with nobody and
    does not change together with others. Otherwise the core holds variable weights itself: they
    are inputs of the graph, and an update is one pointer.

    weights: new values by name; names are among `CompileOptions.variable_weights`, dtypes and
        shapes equal to the old ones. Not kept after the call.
    additive: add to the weight as loaded instead of replacing it.
    Atomic: a predict in any context sees all of them or none; on an error nothing changed, or,
    where the runtime failed half-way, every later predict raises ModelError.
    Returns True. Raises InputError naming a weight that does not fit. Capability: UPDATE_WEIGHTS.
    """


# ------------------------------------------------------------------------------- collectives
#
# Hooks for memory of a device; collectives on host memory are the core's own. Buffers are values of
# the communicator's device. Every rank makes the same calls in the same order. `stream` is where
# the work is queued, after what is there and after the buffers' own streams; the call returns at
# once. With None the result is complete on return.
# Errors: CommunicatorError naming the ranks that did not arrive by `deadline_s` (None: no limit;
# a rank whose process ends still fails the others), or what `Communicator.abort` ended. A queued
# collective's error comes from `Communicator.check`.
# The core calls them in a sliced model's predict, after all ranks have said to each other on the
# host that they have come to the same collective: a device cannot tell who has not come, or has
# come with a tensor of another shape. It is the hosts that meet; the devices may be far behind.
# Capability: QUEUED_COLLECTIVES. With it the core passes a stream: that of the first segment's
# results that collectives of this predict read, one for all of them, also for several groups. It
# hands results on as DeviceBuffers of that stream, keeps all buffers alive, waits once at the end
# of predict by engine_order(device, stream, None), and then asks `Communicator.check`. A queued
# collective that cannot end (`deadline_s` has come, a rank is gone, the group was aborted) lets go
# of the stream soon: who waits for it by engine_order, engine_copy or engine_predict comes back,
# or gets the error. Contents are undefined then, and `check` raises from then on.
# Without it, and where a model has Send or Receive, the core passes None, and what a stream can do
# is not asked: of a rank that has left nobody knows whether a queued Receive still waits for it.
# Capability: COLLECTIVES needs engine_communicator, engine_allreduce, engine_allgather, engine_send
# and engine_receive; of the other three the core composes those that a backend does not have.


@hookspec(firstresult=True)
def engine_communicator(options: CommunicatorOptions) -> Communicator:
    """Join a group of ranks; blocks until all have joined.

    Raises CommunicatorError naming the ranks that are missing after `options.timeout_s`.
    """


@hookspec(firstresult=True)
def engine_allreduce(
    comm: Communicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deterministic: bool,
    deadline_s: float | None,
) -> bool:
    """Reduce `send` over the ranks into `receive`, with the same bits on every rank.

    send, receive: same shape and dtype on every rank; may be one buffer.
    deterministic: equal inputs must give equal bits in every run; may cost speed.
    Returns True.
    """


@hookspec(firstresult=True)
def engine_allgather(
    comm: Communicator, send: Value, receive: Value, stream: int | None, deadline_s: float | None
) -> bool:
    """Join the ranks' `send` along axis 0, in rank order, into `receive` of every rank.

    receive: shape (world_size * send.shape[0], *send.shape[1:]). Returns True.
    """


@hookspec(firstresult=True)
def engine_reduce_scatter(
    comm: Communicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deterministic: bool,
    deadline_s: float | None,
) -> bool:
    """Reduce `send` over the ranks and leave the rank-th of world_size parts of axis 0 here.

    send: shape (world_size * receive.shape[0], *receive.shape[1:]). Returns True.
    """


@hookspec(firstresult=True)
def engine_broadcast(
    comm: Communicator, buffer: Value, root: int, stream: int | None, deadline_s: float | None
) -> bool:
    """Copy `buffer` of rank `root` into `buffer` of every other rank. Returns True."""


@hookspec(firstresult=True)
def engine_alltoall(
    comm: Communicator, send: Value, receive: Value, stream: int | None, deadline_s: float | None
) -> bool:
    """Send the i-th of world_size parts of axis 0 to rank i; receive theirs in rank order.

    send, receive: same shape, axis 0 divisible by world_size; not one buffer. Returns True.
    """


@hookspec(firstresult=True)
def engine_send(
    comm: Communicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    """Send `buffer` to rank `peer`, which calls engine_receive. Returns True."""


@hookspec(firstresult=True)
def engine_receive(
    comm: Communicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    """Fill `buffer` with what rank `peer` sends. Returns True."""
