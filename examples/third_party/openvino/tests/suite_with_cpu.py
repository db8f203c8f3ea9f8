"""onnx's own suite on target ["openvino", "cpu"], and on cpu alone.

python tests/suite_with_cpu.py     # prints the counts, and each test with another outcome
"""

from __future__ import annotations

import warnings
from collections import Counter

import engine
from engine.errors import InputError, ModelError, one_line
from engine_testing.onnx_suite import Case
from engine_testing.onnx_suite.cases import load_cases
from engine_testing.onnx_suite.compare import Difference, compare


def outcome(case: Case, targets: list[str]) -> tuple[str, str]:
    """Run one test; return its outcome, and the reason or the backends that ran it."""
    try:
        with engine.load(case.model, target=targets) as model:
            names = [spec.name for spec in model.outputs]
            for inputs, wanted in case.runs:
                got = list(model(*inputs).values())
                compare(
                    got, wanted, names, rtol=case.rtol, atol=case.atol, values=not case.is_random
                )
            return "passed", " ".join({place.backend for place in model.placement})
    except Difference as error:
        return "wrong", str(error)
    except (ModelError, InputError) as error:
        return "refused", one_line(error)
    except Exception as error:
        return "failed", one_line(error)


def main() -> None:
    """Print the counts of both, and the tests that differ."""
    warnings.simplefilter("ignore")  # of models that break a rule of ONNX
    with_cpu, alone, shared = Counter[str](), Counter[str](), 0
    for case in load_cases():
        first, detail = outcome(case, ["openvino", "cpu"])
        second, _ = outcome(case, ["cpu"])
        with_cpu[first] += 1
        alone[second] += 1
        shared += first == "passed" and "openvino" in detail
        if first != second:
            print(f"{case.name}: {first}, cpu alone: {second}; {detail[:200]}")
    print(f"openvino, cpu: {dict(with_cpu)}; {shared} of the passed have a node on openvino")
    print(f"cpu alone: {dict(alone)}")


if __name__ == "__main__":
    main()
