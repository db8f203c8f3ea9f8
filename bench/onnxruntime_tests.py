"""Run onnxruntime's own Python tests on `engine.onnxruntime`, beside onnxruntime.

    python bench/onnxruntime_tests.py FOLDER         onnxruntime/test of a checkout of onnxruntime

FOLDER has python/ and testdata/. Each file runs in two processes, on onnxruntime and with the
engine in its place; what the first passes and the second does not is named. Needs pytest,
parameterized and onnx beside the cpu backend. The files are those that concern inference on the
CPU; tests that need another device, or libraries that only a build of onnxruntime has, fail or are
skipped on both sides, and do not count.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FILES = (
    "onnxruntime_test_python.py",
    "onnxruntime_test_python_iobinding.py",
    "onnxruntime_test_python_sparse_matmul.py",
    "onnxruntime_test_python_mlops.py",
    "onnxruntime_test_python_backend.py",
    "onnxruntime_test_python_backend_mlops.py",
    "onnxruntime_test_python_global_threadpool.py",
    "onnxruntime_test_python_nested_control_flow_op.py",
    "onnxruntime_test_python_compile_api.py",
    "onnxruntime_test_python_ep_compatibility.py",
    "onnxruntime_test_float8.py",
    "onnxruntime_test_scatternd.py",
)


def outcomes(file: Path, folder: Path, by: list[str]) -> dict[str, str]:
    """Run a file's tests; return "passed", "failed" or "skipped" by their names."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, *by, "-m", "pytest", "-q", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not report.exists():
        sys.exit(f"{file.name}: pytest wrote no report: {done.stdout[-500:]}{done.stderr[-500:]}")
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        is_failed = not tags.isdisjoint({"failure", "error"})
        outcome = "failed" if is_failed else "skipped" if "skipped" in tags else "passed"
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        if found.get(name) != "failed":  # a subtest is a case of the test's name
            found[name] = outcome
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    source = Path(sys.argv[1]).resolve()
    total = same = 0
    print(f"{'file':52} {'onnxruntime':>12} {'engine':>8}  (of those that pass there)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (source / "python").glob("*.py"):  # they write beside themselves
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "testdata").symlink_to(source / "testdata")
        for file in FILES:
            if not (folder / file).exists():
                print(f"{file:52} not there")
                continue
            theirs = outcomes(folder / file, folder, [])
            ours = outcomes(folder / file, folder, ["-m", "engine.onnxruntime"])
            passing = [test for test, outcome in theirs.items() if outcome == "passed"]
            failing = [test for test in passing if ours.get(test) != "passed"]
            total, same = total + len(passing), same + len(passing) - len(failing)
            print(f"{file:52} {len(passing):12} {len(passing) - len(failing):8}", flush=True)
            for test in failing:
                print(f"    {test}: {ours.get(test, 'not run')}")
    print(f"{'all':52} {total:12} {same:8}  {same / max(total, 1):.1%}")


if __name__ == "__main__":
    main()
