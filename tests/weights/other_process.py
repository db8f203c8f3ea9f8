"""Another process that builds models when it is told to, and says what came of it.

with started(folder, cache) as process:
    process.tell(do="build", path=..., target=..., config={...})   # {"y": [[3.0, ...]]}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

X = [[1.0, 2.0, 3.0]]


class Other:
    """The process, as the test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def tell(self, **order: Any) -> dict[str, Any]:
        """Give an order, and return what the process answers."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order, default=str) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def build(self, path: Path, config: dict[str, Any], target: str, **more: Any) -> dict[str, Any]:
        """Have it build a model in place of the one that it has, and run it on X."""
        return self.tell(do="build", path=path, config=config, target=target, **more)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()


@contextmanager
def started(plugins: Path, cache: Path) -> Iterator[Other]:
    """Start one. plugins: a folder with the metadata of backends. cache: its ENGINE_CACHE_DIR."""
    paths = [str(plugins), *sys.path]
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "ENGINE_CACHE": "off",
            "ENGINE_CACHE_DIR": str(cache),
        },
    )
    try:
        yield Other(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def forked() -> Iterator[int]:
    """Fork a child, which does nothing until the block ends."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        yield child
    finally:
        os.close(write)
        os.waitpid(child, 0)


def _main() -> None:
    import engine
    from engine_testing import null_run

    models: list[engine.Model] = []
    compiled: list[str] = []
    write = null_run.write_compiled

    def count(folder: Path, loaded: Any) -> None:
        compiled.append(str(folder))
        write(folder, loaded)

    null_run.write_compiled = count

    def predict(x: Any = X) -> dict[str, Any]:
        import numpy as np

        [y] = models[0](x=np.array(x, np.float32)).values()
        return {"y": y.tolist(), "compiled": len(compiled)}

    def build(order: dict[str, Any]) -> dict[str, Any]:
        close()
        more: dict[str, Any] = {"device_id": order.get("device_id", 0)}
        if "dec_key" in order:
            more["dec_key"] = order["dec_key"].encode()
        model = engine.load(order["path"], order["target"], config=order["config"], **more)
        models.append(model)
        handle = model.get_model_info("shareable_weight_mem_handle")
        return {**predict(order.get("x", X)), "handle": handle}

    def close() -> None:
        while models:
            models.pop().close()

    def in_child(order: dict[str, Any]) -> dict[str, Any]:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            with os.fdopen(write, "w") as file:
                json.dump(done({**order, "do": "build"}), file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            answer: dict[str, Any] = json.load(file)
        os.waitpid(child, 0)
        return answer

    def mapped() -> dict[str, Any]:
        """List the files that are mapped below the cache, as (inode, access)."""
        found = set()
        with open("/proc/self/maps", encoding="utf-8") as lines:
            for line in lines:
                parts = line.split(maxsplit=5)
                if len(parts) == 6 and "/private/" in parts[5]:
                    found.add((int(parts[4]), parts[1]))
        return {"files": sorted(found)}

    def done(order: dict[str, Any]) -> dict[str, Any]:
        try:
            match order["do"]:
                case "build":
                    return build(order)
                case "build in a child":
                    return in_child(order)
                case "predict":
                    return predict()
                case "mapped":
                    return mapped()
                case "close":
                    close()
                    return {}
                case "pid":
                    return {"pid": engine.Model().get_model_info("current_pid")}
        except Exception as error:
            return {"error": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
        raise AssertionError(order)

    for line in sys.stdin:
        print(json.dumps(done(json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
