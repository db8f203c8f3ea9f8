"""A model file is opened, recognised and decrypted once, whoever asks for it next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import parsed
from onnx import numpy_helper

import engine
from engine.errors import ModelError
from engine.formats import ModelFile, encryption, files, kinds, model_file, recent
from engine_testing import models

DATA = Path(__file__).parents[1] / "data" / "mindir"
KEY = bytes(range(16))
needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

# Counts how often a file is opened while commands run; the audit hook sees every open() and
# os.open() of the interpreter.
_COUNTING = """
import json, os, sys
counted, opens = "", []
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, os.PathLike)):
        if os.path.abspath(os.fspath(args[0])) == counted:
            if opens and opens[-1][1] is not None and args[1] is None:
                opens.pop()  # open() with an opener, which calls os.open()
            opens.append(args)
sys.addaudithook(hook)
from engine.formats import encryption, kinds
calls = {}
def counting(name, function):
    def wrapper(*args):
        calls[name] += 1
        return function(*args)
    return wrapper
kinds.recognised_kind = counting("recognised_kind", kinds.recognised_kind)
encryption.decrypt = counting("decrypt", encryption.decrypt)
from engine.cli import main
found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    counted = arguments[1]
    opens.clear()
    calls.update(recognised_kind=0, decrypt=0)
    assert main(arguments) == 0
    found[name] = [len(opens), calls["recognised_kind"], calls["decrypt"]]
print(json.dumps(found), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Opens, recognitions and decryptions of commands."""
    folder = tmp_path_factory.mktemp("counted")
    onnx_file, sealed = str(models.affine(folder)), str(seal(folder))
    commands = {"onnx": ["inspect", onnx_file], "mindir": ["inspect", sealed]}
    if find_spec("engine_cpu") is not None:
        for name in ("onnx", "mindir"):
            commands[f"{name} with a target"] = [*commands[name], "--target", "reference"]
        commands["converted"] = ["convert", sealed, str(folder / "net.onnx"), "--infer"]
    done = subprocess.run(
        [sys.executable, "-c", _COUNTING, json.dumps(commands)],
        capture_output=True, text=True, env=os.environ | {"ENGINE_DEC_KEY": KEY.hex()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def seal(folder: Path) -> Path:
    path = folder / "net.mindir"
    path.write_bytes(encryption.encrypt((DATA / "mlp.mindir").read_bytes(), KEY))
    return path


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    return seal(tmp_path)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("onnx", [1, 1, 0]),
        pytest.param("onnx with a target", [1, 1, 0], marks=needs_cpu),
        ("mindir", [1, 2, 1]),  # the plaintext is recognised too
        pytest.param("mindir with a target", [1, 2, 1], marks=needs_cpu),
        # Two of the source, one of the result, which the trial then runs.
        pytest.param("converted", [1, 3, 1], marks=needs_cpu),
    ],
)
def test_a_command_opens_and_decrypts_its_file_once(
    counts: dict[str, list[int]], command: str, expected: list[int]
) -> None:
    assert counts[command] == expected


def test_a_second_target_gets_the_same_model(tmp_path: Path) -> None:
    file = ModelFile(models.affine(tmp_path))
    assert file({".engine": "plan"}) is file({".om": "om"})


def test_a_compiled_form_is_told_by_the_suffixes_of_each_backend(tmp_path: Path) -> None:
    path = tmp_path / "net.engine"
    path.write_bytes(b"ftrt" + bytes(100))
    file = ModelFile(path)
    with pytest.raises(ModelError, match="is a TensorRT engine"):
        file()
    assert file({".engine": "plan"}).format == "plan"


def test_a_key_that_comes_later_opens_the_file(encrypted: Path) -> None:
    file = ModelFile(encrypted)
    assert (file.kind, file.encryption) == (kinds.ENCRYPTED_MINDIR, "AES-GCM")
    with pytest.raises(ModelError, match="pass its key"):
        file()
    file.unlock(KEY, "AES-GCM")
    assert file().is_secret


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """y = 2x + 1 in a file that is mapped."""
    monkeypatch.setattr(files, "READ_BYTES", 100)
    return models.affine(tmp_path)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\x0a\x00")


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def _overwrite(path: Path) -> None:
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # clocks of file systems tick slowly


@pytest.mark.parametrize("change", [_append, _replace, _overwrite])
def test_a_mapped_file_that_changed_is_refused(large: Path, change: object) -> None:
    source = ModelFile(large)()
    assert source.data is None
    source.check_unchanged()
    assert callable(change)
    change(large)
    with pytest.raises(ModelError, match=r"model\.onnx|affine.*changed while it was loaded"):
        source.check_unchanged()


TRUNCATED = """
import subprocess, sys, time
from engine.formats import model_file
from engine.formats.opened import check_unchanged
from engine.host.lease import leased
with leased(sys.argv[1]) as is_leased:
    if not is_leased:
        sys.exit("no leases")
check, CUT = model_file.read_model, "import os, sys; os.truncate(sys.argv[1], 0)"
def meanwhile(*arguments):
    global child
    child = subprocess.Popen([sys.executable, "-c", CUT, sys.argv[1]])
    time.sleep(1)
    return check(*arguments)
model_file.read_model = meanwhile
source = model_file.ModelFile(sys.argv[1])()
child.wait(60)
try:
    check_unchanged(source)
except RuntimeError as error:
    print(error)
"""


def test_a_file_that_is_truncated_while_it_is_checked_ends_no_process(tmp_path: Path) -> None:
    """Without the lease, this is a SIGBUS."""
    path = models.affine(tmp_path)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2 << 20, np.float32), "unused"))
    onnx.save(model, path)
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED, path], capture_output=True, text=True, timeout=60
    )
    if "no leases" in done.stderr:
        pytest.skip("the file system of the temporary folder has no leases")
    assert done.returncode == 0, done.stderr
    assert "changed while it was loaded" in done.stdout


def test_a_mapped_file_that_is_gone_is_said_to_be(large: Path) -> None:
    source = ModelFile(large)()
    large.unlink()
    with pytest.raises(ModelError, match="cannot be read any more"):
        source.check_unchanged()


def test_a_small_file_may_change(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    source = ModelFile(path)()
    path.write_bytes(b"")
    source.check_unchanged()
    assert source.data


def test_external_data_that_changed_is_refused(tmp_path: Path) -> None:
    source = ModelFile(models.external(tmp_path))()
    source.check_unchanged()
    _append(tmp_path / "external.bin")
    with pytest.raises(ModelError, match=r"external\.bin.*changed while it was loaded"):
        source.check_unchanged()


def test_building_refuses_a_file_that_changed_under_the_backend(
    large: Path, null_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.backends import open_backend

    backend = open_backend(null_backend)
    load = backend.load

    def late(source: object, options: object) -> object:
        loaded = load(source, options)  # type: ignore[arg-type]
        _append(large)
        return loaded

    monkeypatch.setattr(backend, "load", late)
    with pytest.raises(ModelError, match="changed while it was loaded"):
        engine.load(large, null_backend)


def test_nothing_stays_mapped_or_open(large: Path) -> None:
    file = ModelFile(large)
    source = file()
    assert source.graph is not None
    assert str(large) not in Path("/proc/self/maps").read_text()
    assert str(large) not in {str(Path(f"/proc/self/fd/{each}").readlink())
                              for each in os.listdir("/proc/self/fd")
                              if os.path.lexists(f"/proc/self/fd/{each}")}  # fmt: skip


# --------------------------------------------------------------------------- the same file again


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, where a change counts as settled at once."""
    found: list[str] = []
    read = model_file.read_model

    def counted(view: memoryview, path: Path, name: str) -> object:
        found.append(path.name)
        return read(view, path, name)

    monkeypatch.setattr(model_file, "read_model", counted)
    monkeypatch.setattr(recent, "SETTLED_NS", -1)
    monkeypatch.setattr(recent, "_models", {})
    return found


def leaky(path: Path, alpha: float, *, apart: bool = False) -> Path:
    """Write y = LeakyRelu(x) + w in place of what the file holds."""
    nodes = f"z = LeakyRelu <alpha = {alpha}> (x) y = Add (z, w)"
    model = parsed(f"g (float[3] x) => (float[3] y) {{ {nodes} }}", w=np.zeros(3, "f4"))
    if apart:
        onnx.save(
            model, path, save_as_external_data=True, size_threshold=0, location=f"{path.stem}.bin"
        )
    else:
        path.write_bytes(model.SerializeToString())
    return path


def alpha_of(path: Path) -> object:
    graph = ModelFile(path)().graph
    assert graph is not None
    return graph.nodes[0].attributes["alpha"]


def test_a_file_that_stays_as_it_is_is_read_once_a_process(
    reads: list[str], tmp_path: Path
) -> None:
    path = leaky(tmp_path / "a.onnx", 0.5)
    assert [alpha_of(path) for _ in range(3)] == [0.5] * 3
    assert reads == ["a.onnx"]
    most = recent.ROOM // (recent.EACH + 2)  # of files of two nodes
    for number in range(most):
        alpha_of(leaky(tmp_path / f"{number}.onnx", 0.25))
    assert alpha_of(path) == 0.5
    assert (len(reads), reads[-1]) == (most + 2, "a.onnx")
    assert len(recent._models) == most


def test_a_file_that_was_changed_is_read_again_though_its_size_and_time_are_the_same(
    reads: list[str], tmp_path: Path
) -> None:
    path = leaky(tmp_path / "a.onnx", 0.5)
    before = path.stat()
    assert alpha_of(path) == 0.5
    time.sleep(0.05)  # the clock that a file system stamps with has ticks
    leaky(path, 0.25)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    assert alpha_of(path) == 0.25


def test_a_file_that_changed_a_moment_ago_is_not_remembered(
    reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next change may bear the same time."""
    monkeypatch.setattr(recent, "SETTLED_NS", 3_600_000_000_000)
    path = leaky(tmp_path / "a.onnx", 0.5)
    assert [alpha_of(path), alpha_of(path)] == [0.5, 0.5]
    assert reads == ["a.onnx"] * 2


def test_external_data_is_looked_at_each_time(reads: list[str], tmp_path: Path) -> None:
    path = leaky(tmp_path / "a.onnx", 0.5, apart=True)
    assert [alpha_of(path), alpha_of(path)] == [0.5, 0.5]
    assert reads == ["a.onnx"] * 2
    (tmp_path / "a.bin").unlink()
    with pytest.raises(ModelError, match=r"a\.bin"):
        alpha_of(path)


@pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")
def test_nothing_of_an_encrypted_file_is_remembered(reads: list[str], tmp_path: Path) -> None:
    plain = leaky(tmp_path / "a.onnx", 0.5)
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(encryption.encrypt(plain.read_bytes(), KEY))
    for _ in range(2):
        assert ModelFile(secret, dec_key=KEY)().graph is not None
    assert reads == ["secret.onnx"] * 2
    assert recent._models == {}
