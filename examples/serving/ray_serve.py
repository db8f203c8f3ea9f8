"""A model as a deployment of Ray Serve: serve run ray_serve:app."""

import os
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

import engine

CPUS = 2  # of a replica; Ray only counts them, so that the runner must keep to them itself


@serve.deployment(ray_actor_options={"num_cpus": CPUS}, max_ongoing_requests=64)
class Digits:
    """Holds a runner, on which all requests of its replica run."""

    def __init__(self, path: str) -> None:
        context = engine.Context()
        context.parallel.workers_num = CPUS
        self.runner = engine.ModelParallelRunner()
        self.runner.build_from_file(path, context)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Return the outputs for the inputs in a request's JSON, by their names."""
        inputs = {name: np.float32(value) for name, value in (await request.json()).items()}
        outputs = await self.runner.predict_async(inputs)
        return {each.name: each.get_data_to_numpy().tolist() for each in outputs}


app = Digits.bind(os.environ.get("MODEL", "examples/digits/digits.onnx"))
