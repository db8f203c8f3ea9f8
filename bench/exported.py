"""Requests that share runs, for models as torch exports them today: 8 clients, batched and not.

    python bench/exported.py DIR --export   write the models; needs torch, onnxscript, transformers
    python bench/exported.py DIR            measure: rounds of each kind, in turn
    python bench/exported.py DIR --runtime  the gain of ONNX Runtime itself by batches of 8
    python bench/exported.py DIR --encoder 64,6,8 --encoder 512,6,16    only these, in all three

A CNN with AdaptiveAvgPool2d (operator set 20), an nn.TransformerEncoder with masked mean pooling,
and a BERT of random weights with attention_mask. Each client's result is compared bit by bit with
that of the request alone. A model whose requests do not share runs shows why, and is measured
with batching="force" beside. `--runtime`: one session with one thread, 8 runs of a sample and a
run of 8 in turn.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import parser_of

CLIENTS, ROUNDS, SECONDS = 8, 5, 1.5
NAMES = ("cnn", "encoder", "bert")
LENGTH = 16
TIMING_S = 0.01  # of the runtime alone, at least


@dataclass(frozen=True)
class Size:
    """The size of an encoder. length: of a request; the model takes any."""

    width: int
    layers: int
    length: int

    @property
    def name(self) -> str:
        return f"encoder-{self.width}-{self.layers}"

    @classmethod
    def parsed(cls, text: str) -> Size:
        """Return the size that an option says."""
        width, layers, length = map(int, text.split(","))
        return cls(width, layers, length)


def export(folder: Path, sizes: list[Size]) -> None:
    """Write the models with torch: the encoders of these sizes, or else the three models."""
    import torch
    from torch import nn
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    ids, mask = torch.randint(0, 1000, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    both = {0: batch, 1: length}

    class Encoder(nn.Module):
        def __init__(self, width: int, inside: int, layers: int) -> None:
            super().__init__()
            heads = max(4, width // 64)
            self.embedding = nn.Embedding(1000, width)
            layer = nn.TransformerEncoderLayer(width, heads, inside, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(width, 8)

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
    jobs: list[Any] = [
        (size.name, Encoder(size.width, 4 * size.width, size.layers), (ids, mask), (both, both), 18)
        for size in sizes
    ] or [
        ("cnn", nn.Sequential(*layers), (torch.randn(2, 3, 32, 32),), ({0: batch},), 20),
        ("encoder", Encoder(128, 256, 2), (ids, mask), (both, both), 18),
        ("bert", Bert(), (ids, mask), (both, both), 18),
    ]
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


def samples(model: Any, length: int) -> list[list[Any]]:
    """Return a request of each client."""
    chance = np.random.default_rng(0)
    requests = []
    for _ in range(CLIENTS):
        arrays: list[Any] = []
        for spec in model.inputs:
            dims = [dim if isinstance(dim, int) else length for dim in spec.shape or ()]
            shape = [1, *dims[1:]]
            is_float = spec.dtype.numpy.kind == "f"
            arrays.append(
                chance.standard_normal(shape).astype(np.float32)
                if is_float
                else chance.integers(0, 2, shape) | (np.arange(shape[1]) == 0)
            )
        requests.append(arrays)
    return requests


def measure_runtime(path: Path, length: int) -> None:
    """Print the time of a sample alone over that of one in a batch of 8, in plain ONNX Runtime."""
    import onnxruntime as ort

    import engine

    model = engine.load(path)
    names = [spec.name for spec in model.inputs]
    requests = samples(model, length)
    alone = [dict(zip(names, request, strict=True)) for request in requests]
    together = {name: np.concatenate([feeds[name] for feeds in alone]) for name in names}
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    run = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run

    def seconds(batches: list[Any], times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            for feeds in batches:
                run(None, feeds)
        return (time.perf_counter() - begin) / times / CLIENTS

    for batches in (alone, [together]):
        seconds(batches, 2)
    times = max(1, int(TIMING_S / CLIENTS / seconds([together], 1)))
    pairs = [(seconds(alone, times), seconds([together], times)) for _ in range(2 * ROUNDS + 1)]
    single_us, shared_us = (1e6 * min(column) for column in zip(*pairs, strict=True))
    gain = statistics.median(single / shared for single, shared in pairs)
    print(
        f"{path.stem:14} length {length:3}: {gain:.2f} x the samples in batches of 8; "
        f"{single_us:.0f} us alone, {shared_us:.0f} us in a batch"
    )


def measure(path: Path, length: int) -> None:
    """Print the ratio of requests a second, batched over not."""
    import engine

    model = engine.load(path)
    requests = samples(model, length)
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
        print(f"{path.stem:14} {error}")
        shared, how = built(max_batch_size=8, batching="force"), "forced"
    ratios, worst = [], 0.0
    for _ in range(ROUNDS):
        single, difference = served(alone, requests, expected)
        assert not difference
        together, difference = served(shared, requests, expected)
        ratios.append(together / single)
        worst = max(worst, difference)
    bits = "bit-equal" if not worst else f"differs by {worst:.2g}"
    print(
        f"{path.stem:14} length {length:3}, {how}: {statistics.median(ratios):.2f} x the requests "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {bits}"
    )
    alone.close()
    shared.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--encoder", type=Size.parsed, action="append", default=[], metavar="WIDTH,LAYERS,LENGTH"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--export", action="store_true", help="write the models")
    what.add_argument("--runtime", action="store_true", help="measure ONNX Runtime alone")
    given = parser.parse_args()
    if given.export:
        export(given.folder, given.encoder)
        return
    cases = [(size.name, size.length) for size in given.encoder] or [(n, LENGTH) for n in NAMES]
    for name, length in cases:
        (measure_runtime if given.runtime else measure)(given.folder / f"{name}.onnx", length)


if __name__ == "__main__":
    main()
