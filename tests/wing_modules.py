"""The wings, as folders and modules of the engine: the core does without each of them."""

WINGS = (
    "cli", "converter", "distributed", "layouts", "onnxruntime", "report", "serving", "sharding",
    "workers",
    "backends.isolation", "model.group", "model.group_forms", "plan.in_place", "plan.mixed",
    "plan.dataflow", "plan.segments", "plan.several_devices", "plan.steps", "plan.workspace",
    "runtime.asked", "runtime.wrapping", "weights.shared", "weights.lowered", "weights.writer",
    "weights.writing", "formats.adapter_names", "formats.encryption", "formats.lowered",
    "formats.onnx.quantization",
    # These need the onnx package, which the core does not depend on.
    "formats.onnx.infer", "formats.onnx.repair", "plan.extract", "plan.ranges", "plan.reshape",
)  # fmt: skip


def is_of_wing(module: str) -> bool:
    """Return whether a module of the engine, by its dotted name, belongs to a wing."""
    return any(f"{module}.".startswith(f"engine.{wing}.") for wing in WINGS)
