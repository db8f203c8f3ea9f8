"""Statistics of a model in the protocol's form: counts, and nanoseconds altogether."""

from __future__ import annotations

from typing import Any

from engine_serve.loaded import LoadedModel


def statistics_of(model: LoadedModel) -> dict[str, Any]:
    """Return a version's statistics, as the statistics extension names them."""
    counted, own = model.runner.statistics(), model.own
    failed = counted.failed + counted.cancelled + counted.expired + counted.refused + own.refused
    runs = sum(counted.batch_sizes.values())
    nothing = _duration(0, 0.0)
    compute_s = counted.compute.mean_s
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": int(own.last * 1000),
        "inference_count": own.samples,
        "execution_count": runs,
        "inference_stats": {
            "success": _duration(counted.completed, counted.latency.mean_s),
            "fail": _duration(failed, 0.0),
            "queue": _duration(counted.completed, counted.queue.mean_s),
            "compute_input": _sum(own.answered, own.input_s),
            "compute_infer": _duration(counted.completed, compute_s),
            "compute_output": _sum(own.answered, own.output_s),
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": nothing,
                "compute_infer": _duration(count, compute_s),
                "compute_output": nothing,
            }
            for size, count in counted.batch_sizes.items()
        ],
        "memory_usage": [],
    }


def _duration(count: int, mean_s: float) -> dict[str, int]:
    return _sum(count, count * mean_s)


def _sum(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}
