"""Requests that share runs, for models as torch exports them today: 8 clients, batched and not.

    python bench/exported.py export DIR     write the models; needs torch, onnxscript, transformers
    python bench/exported.py DIR            measure: rounds of each kind, in turn

A CNN with AdaptiveAvgPool2d (operator set 20), an nn.TransformerEncoder with masked mean pooling,
and a BERT of random weights with attention_mask. Each client's result is compared bit by bit with
that of the request alone. A model whose requests do not share runs shows why, and is measured
with batching="force" beside.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, ROUNDS, SECONDS = 8, 5, 1.5
NAMES = ("cnn", "encoder", "bert")


def export(folder: Path) -> None:
    """Write the models with torch."""
    import torch
    from torch import nn
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    ids, mask = torch.randint(0, 1000, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    both = {0: batch, 1: length}

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(128, 8)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.encoder(self.embedding(ids), src_key_padding_mask=mask == 0)
            weights = mask.unsqueeze(-1).to(x.dtype)
            return self.head((x * weights).sum(1) / weights.sum(1).clamp(min=1e-9))

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(
                BertConfig(
                    vocab_size=1000,
                    hidden_size=128,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    intermediate_size=256,
                )
            )

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).pooler_output

    layers: list[Any] = []
    for inside, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1024), nn.ReLU()]
    layers += [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    jobs = (
        ("cnn", nn.Sequential(*layers), (torch.randn(2, 3, 32, 32),), ({0: batch},), 20),
        ("encoder", Encoder(), (ids, mask), (both, both), 18),
        ("bert", Bert(), (ids, mask), (both, both), 18),
    )
    folder.mkdir(exist_ok=True)
    for name, model, given, shapes, version in jobs:
        torch.onnx.export(
            model.eval(),
            given,
            str(folder / f"{name}.onnx"),
            dynamo=True,
            dynamic_shapes=shapes,
            opset_version=version,
            external_data=False,
        )


def served(runner: Any, requests: list[list[Any]], expected: list[Any]) -> tuple[float, float]:
    """Return requests a second of all clients, and the largest difference of a result."""
    stop, counts, worst = time.monotonic() + SECONDS, [0] * CLIENTS, [0.0] * CLIENTS

    def client(number: int) -> None:
        while time.monotonic() < stop:
            [y] = runner.predict(requests[number])
            counts[number] += 1
            found = y.get_data_to_numpy()
            if found.tobytes() != expected[number].tobytes():
                worst[number] = max(worst[number], float(np.abs(found - expected[number]).max()))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS, max(worst)


def measure(path: Path) -> None:
    """Print the ratio of requests a second, batched over not."""
    import engine

    model = engine.load(path)
    chance = np.random.default_rng(0)
    requests = []
    for _ in range(CLIENTS):
        arrays: list[Any] = []
        for spec in model.inputs:
            dims = [dim if isinstance(dim, int) else 16 for dim in spec.shape or ()]
            shape = [1, *dims[1:]]
            is_float = spec.dtype.numpy.kind == "f"
            arrays.append(
                chance.standard_normal(shape).astype(np.float32)
                if is_float
                else chance.integers(0, 2, shape) | (np.arange(shape[1]) == 0)
            )
        requests.append(arrays)
    expected = [model.predict(list(request))[0].get_data_to_numpy() for request in requests]

    def built(**settings: Any) -> Any:
        runner = engine.ModelParallelRunner()
        context = engine.Context()
        context.parallel.workers_num = 1
        runner.build_from_file(str(path), context, **settings)
        return runner

    alone = built(max_batch_size=1)
    try:
        shared = built(max_batch_size=8)
        how = "proven"
    except RuntimeError as error:
        print(f"{path.stem:8} {error}")
        shared, how = built(max_batch_size=8, batching="force"), "forced"
    ratios, worst = [], 0.0
    for _ in range(ROUNDS):
        single, difference = served(alone, requests, expected)
        assert not difference
        together, difference = served(shared, requests, expected)
        ratios.append(together / single)
        worst = max(worst, difference)
    bits = "bit-equal" if not worst else f"differs by {worst:.2g}"
    print(f"{path.stem:8} {how}: {statistics.median(ratios):.2f} x the requests, {bits}")
    alone.close()
    shared.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["export"]:
        export(Path(sys.argv[2]))
    else:
        for name in NAMES:
            measure(Path(sys.argv[1]) / f"{name}.onnx")
