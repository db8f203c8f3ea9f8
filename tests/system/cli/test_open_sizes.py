"""Commands run models with open sizes without a flag: a cache, pictures; else they say the flag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import written

import engine

pytestmark = pytest.mark.device("cpu")


def cached(folder: Path, names: tuple[str, str, str, str] = ("b", "s", "t", "p")) -> Path:
    """A new part is put behind a cache, and the mask, which is of both, beside them."""
    batch, new, total, past = names
    random = np.random.default_rng(0)
    shapes = {"table": (40, 8), "w": (8, 8), "v": (9, 8)}
    weights = {name: random.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    return written(
        folder / "cached.onnx",
        f"""cached (int64[{batch}, {new}] input_ids, int64[{batch}, {total}] attention_mask,
                    float[{batch}, {past}, 8] "past_key_values.0.key")
                => (float[] y, float[] present) {{
            x = Gather(table, input_ids)
            h = MatMul(x, w)
            present = Concat <axis = 1> ("past_key_values.0.key", h)
            m = Unsqueeze(attention_mask, last)
            f = Cast <to = 1> (m)
            both = Concat <axis = 2> (present, f)
            y = MatMul(both, v)
        }}""",
        last=[2],
        **weights,
    )


def in_rows_of(folder: Path, count: int) -> Path:
    """A model of pictures whose numbers must be divisible by one."""
    ends = f"(float[n, 3, h, w] x) => (float[n, ?, {count}] y)"
    text = f"rows {ends} {{ y = Reshape(x, shape) }}"
    return written(folder / "rows.onnx", text, shape=[0, -1, count])


NAMES = [
    ("batch_size", "sequence_length", "total_sequence_length", "past_sequence_length"),
    ("s10", "s70", "s53", "s15"),
]


@pytest.mark.parametrize("names", NAMES, ids=["named", "numbered"])
def test_a_model_with_a_cache_is_run_measured_compared_converted_and_sliced(cli, tmp_path, names):
    path = cached(tmp_path, names)
    done = cli("run", path, "--json").json
    assert [each["shape"] for each in done["inputs"]] == [[1, 1], [1, 2], [1, 1, 8]]
    asked = cli("run", path, "--shape", "attention_mask=2,7", "--shape", "input_ids=2,3", "--json")
    assert [each["shape"] for each in asked.json["inputs"]] == [[2, 3], [2, 7], [2, 4, 8]]
    assert cli("bench", path, "--runs", 3, "--warmup", 0, "--json").json["runs"] == 3
    assert cli("compare", path, "--b", "cpu", "--json").json["is_within"]
    assert cli("convert", path, tmp_path / "again.onnx", "--infer").status == 0
    for divided in ("--tp", "--pp"):
        out = tmp_path / divided
        report = cli("slice", path, divided, 2, "--out", out, "--json").json
        assert [one["output"] for one in report["differences"]] == ["y", "present"]
        own = onnx.load(out / "cached0.onnx").graph.input[0].type.tensor_type.shape
        assert [dim.dim_param for dim in own.dim] == [*names[:2]]


def test_the_functions_choose_sizes_as_the_commands_do(tmp_path):
    path = cached(tmp_path, NAMES[1])
    assert engine.bench(path, runs=2, warmup_s=0).runs == 2
    assert engine.compare(path, targets=("cpu", "cpu")).is_within
    group = engine.ModelGroup(engine.ModelGroupFlag.SHARE_WORKSPACE)
    group.add_model([str(path), str(path)])
    group.cal_max_size_of_workspace(engine.ModelType.MINDIR, engine.Context())


def test_a_size_that_does_not_run_is_followed_by_another(cli, tmp_path):
    path = in_rows_of(tmp_path, 49)  # 224 is divisible by 7
    assert cli("run", path, "--json").json["inputs"][0]["shape"] == [1, 3, 224, 224]
    assert cli("compare", path, "--b", "cpu", "--json").json["inputs"][0]["shape"][2:] == [224] * 2
    done = cli("run", path)
    assert "it was run with others" in done.err
    assert [line.split(",")[2] for line in done.out.splitlines() if "input x" in line] == [
        " 64",
        " 224",
    ]


def test_where_no_size_runs_the_error_says_which_were_chosen_and_the_flag(cli, tmp_path):
    path = in_rows_of(tmp_path, 29)
    done = cli("run", path).fails("chosen, and none of")
    assert "runs, as n 1, h 64, w 64; say sizes that fit together: --shape NAME=SIZES" in done.err
    assert cli("run", path, "--shape", "x=1,3,29,2").status == 0


def test_sizes_that_disagree_are_named(cli, tmp_path):
    sizes = ("--shape", "attention_mask=1,2", "--shape", "input_ids=1,3")
    done = cli("run", cached(tmp_path, NAMES[0]), *sizes).fails(
        "its total_sequence_length is 2 and sequence_length of input 'input_ids' 3"
    )
    assert "change --shape" in done.err


def test_axes_that_cannot_have_their_sizes_are_named_by_slice_and_by_convert(cli, tmp_path):
    path = written(
        tmp_path / "two.onnx",
        """two (float[n, 3, h, w] x, float[k, 4] y) => (float[] z, float[] v) {
            [join] h = MatMul(x, y)
            z = MatMul(h, w4)
            v = MatMul(x, w5)
        }""",  # v: so that no size that is tried runs
        w4=np.ones((4, 32), "f"),
        w5=np.ones((5, 32), "f"),
    )
    said = (
        "axis 3 of input 'x' is {} and axis 0 of input 'y' {}, but MatMul 'join' needs them to be "
        "equal"
    )
    shapes = ("--input-shape", "x=1,3,2,5", "--input-shape", "y=6,4")
    cli("slice", path, "--tp", "2", "--out", tmp_path / "slices", *shapes).fails(said.format(5, 6))
    (tmp_path / "q.ini").write_text("[common_quant_param]\nquant_type=WEIGHT_QUANT\n"
                                    "min_quant_weight_channel=4\n")  # fmt: skip
    done = cli("convert", path, tmp_path / "out", "--quantize", tmp_path / "q.ini")
    assert done.status == 0
    assert "note: accuracy was not measured: " in done.out
    assert said.format(64, 1) in done.out
