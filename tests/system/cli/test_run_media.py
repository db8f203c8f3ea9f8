"""`engine run` on what people have: images, tables, text, and pipes."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import parsed
from own_python import python

from engine.cli import main

Image = pytest.importorskip("PIL.Image")


def echo(
    path: Path, shape: str, kind: str = "float", names: Sequence[str] = ("x",), **metadata: str
) -> Path:
    """A model that gives each input back, as "y" or "NAME_out"."""
    out = {name: "y" if len(names) == 1 else f"{name}_out" for name in names}
    takes, gives = (
        ", ".join(f"{kind}[{shape}] {name}" for name in end) for end in (out, out.values())
    )
    nodes = "\n".join(f"{out[name]} = Identity({name})" for name in names)
    model = parsed(f"echo ({takes}) => ({gives}) {{ {nodes} }}")
    props = {key.replace("_", ".", 1): text for key, text in metadata.items()}
    onnx.helper.set_model_props(model, props)
    onnx.save(model, path)
    return path


@pytest.fixture
def echoed(cli, tmp_path):
    """Returns what a model of one input was given, and the notes on standard error."""

    def run(model: Path, *arguments: object) -> tuple[np.ndarray, str]:
        done = cli("run", model, *arguments, "--output", tmp_path / "out.npz")
        assert done.status == 0, done.err
        with np.load(tmp_path / "out.npz") as outputs:
            return outputs["y"], done.err

    return run


@pytest.fixture
def photo(tmp_path) -> Path:
    """4 x 2 pixels, of which the left half is red and the right half is blue."""
    pixels = np.zeros((2, 4, 3), np.uint8)
    pixels[:, :2, 0] = 255
    pixels[:, 2:, 2] = 255
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


# ---------------------------------------------------------------------------------------- images


def test_an_image_goes_into_floats_as_0_to_1_and_says_so(echoed, photo, tmp_path):
    y, notes = echoed(echo(tmp_path / "m.onnx", "n, 3, 2, 4"), "--input", photo)
    assert y.shape == (1, 3, 2, 4)
    np.testing.assert_array_equal(y[0, :, 0, 0], [1, 0, 0])
    np.testing.assert_array_equal(y[0, :, 0, 3], [0, 0, 1])
    assert notes == (f"note: input x: {photo}: 4x2 RGB, channels RGB, values 0..1, NCHW\n")


def test_an_image_goes_into_bytes_as_it_is_and_is_resized(echoed, photo, tmp_path):
    model = echo(tmp_path / "m.onnx", "1, 2, 2, 3", "uint8")
    y, notes = echoed(model, "--input", f"x={photo}")
    # Bilinear over two pixels on either side: weights 3, 3 and 1 of 7.
    np.testing.assert_allclose(y[0, 0], [[219, 0, 36], [36, 0, 219]], atol=1)
    assert "to 2x2 by stretch (bilinear), channels RGB, values 0..255, NHWC" in notes
    y, notes = echoed(model, "--input", photo, "--resize", "crop")
    assert "by crop" in notes
    y, notes = echoed(echo(tmp_path / "n.onnx", "1, 3, 4, 4"), "--input", photo, "--resize", "pad")
    np.testing.assert_array_equal(y[0, :, 0], 0)  # a black bar above
    np.testing.assert_array_equal(y[0, 0, 1], [1, 1, 0, 0])


def test_the_models_metadata_says_channels_and_range(echoed, photo, tmp_path):
    model = echo(
        tmp_path / "m.onnx",
        "1, c, 2, 4",
        Image_BitmapPixelFormat="Bgr8",
        Image_NominalPixelRange="Normalized_1_1",
    )
    y, notes = echoed(model, "--input", photo)
    np.testing.assert_allclose(y[0, :, 0, 0], [-1, -1, 1], atol=1e-6)
    assert "channels BGR, values -1..1, NCHW" in notes
    gray = echo(tmp_path / "g.onnx", "h, w, 1", Image_BitmapPixelFormat="Gray8")
    y, notes = echoed(gray, "--input", photo)
    np.testing.assert_allclose(y[0, :, 0] * 255, [76, 76, 29, 29], atol=1)  # ITU-R 601 luma


def test_a_folder_without_images_gives_its_arrays(echoed, tmp_path):
    folder = tmp_path / "cal"
    folder.mkdir()
    (folder / "notes.txt").write_text("no input")
    for number in (10, 9):
        np.save(folder / f"{number}.npy", np.full((1, 3), number, np.int16))
    model = echo(tmp_path / "m.onnx", "n, 3", "int16")
    y, notes = echoed(model, "--input", f"x={folder}")
    assert y[:, 0].tolist() == [9, 10]
    assert "a batch of 2 from 2 files" in notes


def test_scale_mean_and_std_are_options(echoed, photo, tmp_path):
    model = echo(tmp_path / "m.onnx", "1, 3, 2, 4")
    options = ("--scale", "1", "--mean", "100,20,5", "--std", "2,4,5")
    y, notes = echoed(model, "--input", photo, *options)
    np.testing.assert_allclose(y[0, :, 0, 0], [(255 - 100) / 2, -5, -1])
    assert "values 0..255, mean 100, 20, 5, std 2, 4, 5" in notes


def test_what_takes_no_image_says_what_would(cli, photo, tmp_path):
    flat = echo(tmp_path / "flat.onnx", "1, 10")
    done = cli("run", flat, "--input", photo).fails("is an image, but input 'x' is float32[1, 10]")
    model = echo(tmp_path / "m.onnx", "1, 3, 2, 4")
    assert cli("run", model, "--input", photo, "--std", "0").status == 2
    for scale in ("nan", "inf"):
        cli("run", model, "--input", photo, "--scale", scale).fails(
            f"--scale: expected a finite number, got {scale}", 2
        )
    assert "expected 1 or 3 numbers" in cli("run", model, "-i", photo, "--mean", "1,2").err
    (tmp_path / "no.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    done = cli("run", model, "--input", tmp_path / "no.png")
    assert "no.png: not a readable image" in done.err


def test_a_damaged_tiff_is_named_whatever_its_reader_raises(cli, tmp_path):
    held = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(held, "TIFF")
    data = bytearray(held.getvalue())
    tags = int.from_bytes(data[4:8], "little") + 2
    types = {
        int.from_bytes(data[place : place + 2], "little"): place + 2
        for place in range(tags, tags + 12 * int.from_bytes(data[tags - 2 : tags], "little"), 12)
    }
    model = echo(tmp_path / "m.onnx", "1, 1, 4, 4")
    for kind in (2, 5, 12):  # text, fraction, float: no counts of rows
        data[types[273]] = kind
        (tmp_path / "a.tif").write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on other tags
            done = cli("run", model, "--input", tmp_path / "a.tif")
        assert done.status == 1
        assert "a.tif: not a readable image: " in done.err


def test_without_pillow_the_extra_is_named(cli, photo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    cli("run", echo(tmp_path / "m.onnx", "1, 3, 2, 4"), "--input", photo).fails(
        'run: pip install "inference-engine[image]"'
    )


# The pixels that a camera stores that was held so, of an image whose upright pixels are `upright`.
HELD = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: upright.transpose(1, 0, 2)[::-1],  # turned by 90 degrees to the left
    7: lambda upright: upright.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda upright: upright.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("orientation", HELD)
def test_a_photo_of_a_camera_that_was_turned_is_turned_back(echoed, tmp_path, orientation):
    upright = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3) * 10
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(HELD[orientation](upright))
    Image.fromarray(stored).save(tmp_path / "p.png", exif=exif)
    model = echo(tmp_path / "m.onnx", "1, h, w, 3", "uint8")
    y, notes = echoed(model, "--input", tmp_path / "p.png")
    np.testing.assert_array_equal(y[0], upright)
    is_said = f"turned upright (EXIF orientation {orientation})" in notes
    assert is_said == (orientation > 1)


def test_several_images_and_a_folder_of_them_are_a_batch(cli, echoed, photo, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in (10, 9):
        Image.fromarray(np.full((2, 4, 3), number, np.uint8)).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("not an image")
    model = echo(tmp_path / "m.onnx", "n, 2, 4, 3", "uint8")
    y, notes = echoed(model, "--input", f"x={folder}")
    assert y[:, 0, 0, 0].tolist() == [9, 10]  # as a person counts
    assert notes == (
        "note: input x: a batch of 2 from 2 files, each 4x2 RGB, channels RGB, values 0..255, "
        "NHWC\n"
    )
    y, _ = echoed(model, "--input", f"{photo},{folder / '9.png'},{photo}")
    assert y[:, 0, 0, 0].tolist() == [255, 9, 255]
    three = echo(tmp_path / "three.onnx", "3, 3, 1, 2")
    assert echoed(three, "-i", f"x={photo},{photo},{folder / '9.png'}")[0].shape == (3, 3, 1, 2)
    done = cli("run", three, "--input", folder)
    assert "expected a batch of 3, got 2 from 2 files" in done.err
    assert "give 3, with commas between: --input x=a.png,b.png" in cli(
        "run", three, "--input", photo
    ).err  # fmt: skip
    (tmp_path / "none").mkdir()
    none = "none: is a folder without images or .npy files; expected some"
    assert none in cli("run", model, "-i", tmp_path / "none").err
    done = cli("run", model, "--input", f"x={photo},{tmp_path / 'gone.png'}")
    assert "gone.png: no such file" in done.err
    done = cli("run", model, "--input", f"{tmp_path}/*.png")  # quoted: no shell has expanded it
    assert done.err == (
        f"error: {tmp_path}/*.png: no such file; patterns are not read: give the files with commas "
        f"between, or '{tmp_path}'\n"
    )


def test_a_file_that_does_not_fit_a_batch_is_told_the_input_with_its_axes_names(cli, tmp_path):
    model = echo(tmp_path / "m.onnx", "N, 3")
    for name, columns in (("a", 3), ("b", 4)):
        np.save(tmp_path / f"{name}.npy", np.zeros((1, columns), np.float32))
    cli("run", model, "--input", f"{tmp_path}/a.npy,{tmp_path}/b.npy").fails(
        "b.npy: input 'x': expected float32[N, 3], got float32[1, 4]"
    )


def test_images_of_two_sizes_are_a_batch_where_one_is_said(cli, echoed, photo, tmp_path):
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / "other.png")
    model = echo(tmp_path / "m.onnx", "n, 3, h, w")
    files = f"x={photo},{tmp_path / 'other.png'}"
    done = cli("run", model, "--input", files)
    assert done.status == 1
    assert done.err.endswith("a batch needs one size: give it with --shape x=2,3,2,4\n")
    y, notes = echoed(model, "--input", files, "--shape", "x=2,3,2,4")
    assert y.shape == (2, 3, 2, 4)
    assert "other.png: 5x5 RGB, to 4x2 by stretch" in notes


def test_arrays_are_a_batch_too_and_what_has_no_batch_is_refused(cli, echoed, photo, tmp_path):
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    np.save(tmp_path / "b.npy", np.float32([[3, 4], [5, 6]]))
    both = f"x={tmp_path / 'a.npy'},{tmp_path / 'b.npy'}"
    y, _ = echoed(echo(tmp_path / "m.onnx", "n, 2"), "--input", both)
    np.testing.assert_array_equal(y, [[1, 2], [3, 4], [5, 6]])
    flat = echo(tmp_path / "flat.onnx", "3, 2, 4")
    assert "has no axis for a batch" in cli("run", flat, "-i", f"{photo},{photo}").err
    comma = tmp_path / "a,b.npy"  # a file's own name comes first
    np.save(comma, np.float32([[7, 8]]))
    y, _ = echoed(echo(tmp_path / "m.onnx", "n, 2"), "--input", comma)
    np.testing.assert_array_equal(y, [[7, 8]])


# ------------------------------------------------------------------------------- tables and text


def test_a_table_is_numbers_with_or_without_a_header(echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 3")
    (tmp_path / "a.csv").write_text("wide,long,tall\n1,2.5,3\n4,,6\n")
    y, notes = echoed(model, "--input", tmp_path / "a.csv")
    np.testing.assert_array_equal(y, [[1, 2.5, 3], [4, np.nan, 6]])
    assert "2 x 3 values, without the header" in notes
    (tmp_path / "b.csv").write_text("1;2;3\n")
    np.testing.assert_array_equal(echoed(model, "--input", tmp_path / "b.csv")[0], [[1, 2, 3]])
    (tmp_path / "c.txt").write_text("1 2 3\n4 5 6\n")
    np.testing.assert_array_equal(
        echoed(model, "--input", tmp_path / "c.txt")[0], [[1, 2, 3], [4, 5, 6]]
    )


def test_columns_go_to_the_inputs_of_their_names(cli, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 1", "int64", ("age", "size"))
    (tmp_path / "a.csv").write_text("name,size,age\nx,1,2\ny,3,4\n")
    done = cli("run", model, "--input", tmp_path / "a.csv", "--output", "-", "--json")
    assert done.json == {"age_out": [[2], [4]], "size_out": [[1], [3]]}
    assert "not used: 'name'" in done.err


def test_cells_that_are_no_numbers_are_named_by_their_line(cli, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 2", "int8")
    for text, said in (
        ("1,2\n3,x\n", "line 2: input 'x': expected a number for int8, got 'x'"),
        ("1,2\n3,200\n", "expected int8, got 200"),
        ("1,2\n3\n", "line 2: expected 2 values as in the first, got 1"),
        ("a,b\n", "got the header alone"),
        ("", "empty; expected lines of values"),
    ):
        (tmp_path / "a.csv").write_text(text)
        done = cli("run", model, "--input", tmp_path / "a.csv")
        assert (done.status, said in done.err) == (1, True), done.err


def test_json_is_lists_or_inputs_by_name(cli, echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 2")
    (tmp_path / "a.json").write_text("[[1, 2], [3, 4.5]]")
    np.testing.assert_array_equal(
        echoed(model, "--input", tmp_path / "a.json")[0], [[1, 2], [3, 4.5]]
    )
    (tmp_path / "b.json").write_text('{"x": [[1, 2]], "other": 7}')
    y, notes = echoed(model, "--input", tmp_path / "b.json")
    assert (y.tolist(), "not used: 'other'" in notes) == ([[1, 2]], True)
    for text, said in (
        ("[[1, 2], [3]]", "expected lists of the same lengths"),
        ('[["a", "b"]]', "expected numbers"),
        ('{"image": [[1, 2]]}', "expected values by input name, 'x'; it has: 'image'"),
        ("[1,", "not readable JSON"),
    ):
        (tmp_path / "c.json").write_text(text)
        assert said in cli("run", model, "--input", tmp_path / "c.json").err


def test_text_goes_into_strings_line_by_line(cli, tmp_path):
    (tmp_path / "a.txt").write_text("one line\nand another\n")
    lines = echo(tmp_path / "m.onnx", "n", "string")
    done = cli("run", lines, "--input", tmp_path / "a.txt", "--output", "-", "--json")
    assert done.json == {"y": ["one line", "and another"]}
    whole = echo(tmp_path / "w.onnx", "1", "string")
    done = cli("run", whole, "--input", tmp_path / "a.txt", "--output", "-", "--json")
    assert done.json == {"y": ["one line\nand another"]}


def test_an_archive_of_one_unnamed_array_is_for_the_one_input(echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 2")
    np.savez(tmp_path / "a.npz", np.float32([[1, 2]]))
    for how in (tmp_path / "a.npz", f"x={tmp_path / 'a.npz'}"):
        assert echoed(model, "--input", how)[0].tolist() == [[1, 2]]


# ----------------------------------------------------------------------------------------- pipes


@pytest.fixture
def piped(capsysbinary, monkeypatch):
    """Runs the command in this process on what comes by standard input."""

    def run(given: bytes, *arguments: object) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status = main(["run", *map(str, arguments)])
        out, errors = capsysbinary.readouterr()
        return status, out, errors.decode()

    return run


def test_arrays_go_in_and_out_through_pipes(piped, tmp_path):
    model = echo(tmp_path / "m.onnx", "rows, 2")
    held = io.BytesIO()
    np.save(held, np.float32([[1, 2]]))
    words = ("-m", "engine.cli", "run", model, "--input", "x=-", "--output", "-")
    done = python(*words, input=held.getvalue(), text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with np.load(io.BytesIO(done.stdout)) as outputs:
        assert outputs["y"].tolist() == [[1, 2]]
    to_json = ("--output", "-", "--json")
    status, out, _ = piped(b"[[3, 4]]", model, "--input", "-", *to_json)
    assert (status, json.loads(out)) == (0, {"y": [[3, 4]]})
    for text in ("-", "x=-"):  # one array for one input, of whatever name; so does a value of JSON
        again = piped(done.stdout, model, "--input", text, "--output", "-")
        assert again == (0, done.stdout, "")
        status, out, errors = piped(b'{"y": [[3, 4]]}', model, "--input", text, *to_json)
        assert (status, errors, json.loads(out)) == (0, "", {"y": [[3, 4]]})
    status, _, errors = piped(b'{"a": [[1, 2]], "b": [[1, 2]]}', model, "--input", "-")
    assert (status, "expected values by input name, 'x'" in errors) == (1, True)
    status, out, errors = piped(b"", model, "--input", "-")
    assert (status, "standard input: empty" in errors) == (1, True)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "WEBP"])
def test_images_go_in_through_a_pipe(piped, tmp_path, kind):
    held = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(held, kind)
    model = echo(tmp_path / "m.onnx", "1, 1, 2, 2")
    status, _, errors = piped(held.getvalue(), model, "--input", "-")
    assert status == 0, errors


def test_the_inputs_are_said_before_a_run_that_fails(cli, tmp_path):
    done = cli("run", echo(tmp_path / "m.onnx", "rows, 2"), "--timeout", "1e-9")
    assert done.status == 1
    assert done.out == "input x: float32[1, 2], generated: all ones\n"


def test_an_image_of_16_bits_is_scaled_not_cut_off(cli, echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "1, 1, 1, 4")
    deep = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    given, said = echoed(model, "--input", tmp_path / "deep.png")
    np.testing.assert_allclose(given.ravel(), deep.ravel() / 65535, rtol=1e-6)
    assert "0..65535 to 0..255" in said
    Image.fromarray(np.array([[0, 1, 2, 300]], np.float32)).save(tmp_path / "wide.tif")
    cli("run", model, "--input", tmp_path / "wide.tif").fails(
        "wide.tif: expected pixels from 0 to 255, got 0 to 300; make the array"
    )


def test_texts_keep_the_ends_of_lines_in_them(echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "n", "string")
    (tmp_path / "x.csv").write_bytes('x\r\n"a\nb"\r\nc\u2028d\r\n'.encode())
    given, _ = echoed(model, "--input", tmp_path / "x.csv")
    assert given.tolist() == ["a\nb", "c\u2028d"]
    (tmp_path / "x.txt").write_bytes("a\u2028b\r\n\r\nc\x0cd".encode())
    given, _ = echoed(model, "--input", tmp_path / "x.txt")
    assert given.tolist() == ["a\u2028b", "", "c\x0cd"]


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("FLOAT", "x.csv", "x\n" + "1" * 200_000, "x.csv: not readable as lines of values"),
        ("FLOAT", "x.json", "[" * 100_000, "x.json: not readable JSON: its lists are nested too"),
        ("FLOAT", "x.json", "[1e40]", "x.json: input 'x': expected float32, got 1e+40"),
        ("FLOAT", "x.csv", "2\n1e40\n", "x.csv: input 'x': expected float32, got 1e+40"),
        ("STRING", "x.json", '["a", null]',
         "expected texts in lists of the same lengths, got null"),
        ("STRING", "x.json", '[["a"], ["b", "c"]]', 'of the same lengths, got ["a"]'),
        ("STRING", "x.json", '[{"a": 1}]', 'got {"a": 1}'),
    ],
)  # fmt: skip
def test_what_a_type_cannot_hold_is_an_error_of_one_line(cli, tmp_path, kind, name, text, said):
    model = echo(tmp_path / "m.onnx", "n", kind.lower())
    (tmp_path / name).write_text(text)
    done = cli("run", model, "--input", tmp_path / name).fails(said)
    assert "Traceback" not in done.err


def test_whole_numbers_of_json_are_exact_beside_floats(echoed, tmp_path):
    model = echo(tmp_path / "m.onnx", "n", "int64")
    (tmp_path / "x.json").write_text(f"[{2**53 + 1}, 1.0]")
    given, _ = echoed(model, "--input", tmp_path / "x.json")
    assert given.tolist() == [2**53 + 1, 1]
