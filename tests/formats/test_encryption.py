"""Encrypted files: MindSpore's layout, their keys, and what they may hold."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

import engine
from engine.errors import ModelError
from engine.formats import ModelFile, encryption, open_source, source_from_bytes
from engine_testing import models

DATA = Path(__file__).parents[1] / "data" / "mindir"
MAGIC = {"AES-GCM": 0x7F3A5ED8, "AES-CBC": 0x7F3A5ED9, "SM4-CBC": 0x7F3A5EDA}
KEYS = [
    *(("AES-GCM", bytes(range(size))) for size in (16, 24, 32)),
    *(("AES-CBC", bytes(range(size))) for size in (16, 24, 32)),
    ("SM4-CBC", bytes(range(16))),
]
KEY = bytes(range(16))


MLP = (DATA / "mlp.mindir").read_bytes()


@pytest.fixture
def seal(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes as an encrypted file; returns its path."""

    def seal(plain: bytes, key: bytes = KEY, mode: str = "AES-GCM") -> Path:
        path = tmp_path / "net.mindir"
        path.write_bytes(encryption.encrypt(plain, key, mode))
        return path

    return seal


Seal = Callable[..., Path]


def by_the_description(data: bytes, key: bytes, mode: str, nonce: int = 12) -> list[bytes]:
    """The plaintext of each block, straight from what is known of the layout."""
    found = []
    while data:
        assert struct.unpack("<I", data[:4]) == (MAGIC[mode],)
        tag, data = (data[4:20], data[20:]) if mode == "AES-GCM" else (None, data[4:])
        length, iv_length = struct.unpack("<ii", data[:8])
        assert iv_length == 16
        iv, (count,) = data[8:24], struct.unpack("<i", data[24:28])
        assert length == 4 + 16 + 4 + count
        sealed, data = data[28 : 28 + count], data[28 + count :]
        assert len(sealed) == count
        algorithm = algorithms.SM4(key) if mode == "SM4-CBC" else algorithms.AES(key)
        how = modes.CBC(iv) if tag is None else modes.GCM(iv[:nonce], tag)
        decryptor = Cipher(algorithm, how).decryptor()
        plain = decryptor.update(sealed) + decryptor.finalize()
        if tag is None:
            remover = PKCS7(128).unpadder()
            plain = remover.update(plain) + remover.finalize()
        found.append(plain)
    return found


def gcm_with_the_whole_iv(plain: bytes, key: bytes) -> bytes:
    """A block as newer MindSpore Lite writes it."""
    iv = bytes(range(100, 116))
    encryptor = Cipher(algorithms.AES(key), modes.GCM(iv)).encryptor()
    sealed = encryptor.update(plain) + encryptor.finalize()
    lengths = struct.pack("<ii", 24 + len(sealed), 16)
    head = struct.pack("<I", MAGIC["AES-GCM"]) + encryptor.tag + lengths + iv
    return head + struct.pack("<i", len(sealed)) + sealed


@pytest.mark.parametrize(("mode", "key"), KEYS, ids=lambda each: str(each)[:7])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300])
def test_what_is_encrypted_comes_back_in_blocks_of_its_own(
    mode: str, key: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "BLOCK_BYTES", 64)
    plain = np.random.default_rng(size).bytes(size)
    sealed = encryption.encrypt(memoryview(plain), key, mode)
    blocks = by_the_description(sealed, key, mode)
    assert b"".join(blocks) == plain
    assert [len(each) for each in blocks] == [*[64] * (max(size - 1, 0) // 64), (size - 1) % 64 + 1
                                              if size else 0]  # fmt: skip
    assert encryption.decrypt(memoryview(sealed), key, mode) == plain


def test_blocks_end_at_64_mib() -> None:
    plain = bytes(64 << 20) + b"rest"
    sealed = encryption.encrypt(plain, KEY)
    blocks = by_the_description(sealed, KEY, "AES-GCM")
    assert [len(each) for each in blocks] == [64 << 20, 4]
    assert encryption.decrypt(memoryview(sealed), KEY, "AES-GCM") == plain


@pytest.mark.parametrize("mode", MAGIC)
def test_no_two_blocks_have_one_iv(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "BLOCK_BYTES", 16)
    sealed = [encryption.encrypt(bytes(64), KEY, mode) for _ in range(2)]
    start = 28 if mode == "AES-GCM" else 12
    size = len(sealed[0]) // 4
    ivs = {each[place + start : place + start + 16] for each in sealed
           for place in range(0, len(each), size)}  # fmt: skip
    assert len(ivs) == 8


@pytest.mark.parametrize("path", sorted(DATA.glob("nets/enc_*.mindir")), ids=lambda each: each.stem)
def test_mindspores_own_files_are_read_as_the_description_says(path: Path) -> None:
    _, mode, size = path.stem.split("_")
    key = bytes(range(int(size)))
    sealed = path.read_bytes()
    plain = encryption.decrypt(memoryview(sealed), key, mode)
    assert [plain] == by_the_description(sealed, key, mode)
    # Files written here have the same sizes and lengths as MindSpore's.
    again = encryption.encrypt(plain, key, mode)
    lengths = slice(20, 28) if mode == "AES-GCM" else slice(4, 12)
    assert len(again) == len(sealed)
    assert (again[:4], again[lengths]) == (sealed[:4], sealed[lengths])


def test_both_readings_of_the_gcm_nonce_are_understood() -> None:
    sealed = gcm_with_the_whole_iv(b"one", KEY) + gcm_with_the_whole_iv(b"two", KEY)
    assert by_the_description(sealed, KEY, "AES-GCM", nonce=16) == [b"one", b"two"]
    assert encryption.decrypt(memoryview(sealed), KEY, "AES-GCM") == b"onetwo"


@pytest.mark.parametrize(
    ("key", "mode", "why"),
    [
        (bytes(15), "AES-GCM", "the key has 15 bytes; AES-GCM takes 16, 24 or 32"),
        (b"", "AES-CBC", "the key has 0 bytes; AES-CBC takes 16, 24 or 32"),
        (bytes(32), "SM4-CBC", "the key has 32 bytes; SM4-CBC takes 16$"),
        (bytes(16), "AES-CTR", "'AES-CTR' is not known; expected one of AES-GCM, AES-CBC, SM4-CBC"),
    ],
)
def test_a_key_or_mode_that_cannot_be_encrypts_nothing(key: bytes, mode: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        encryption.encrypt(b"plain", key, mode)


def test_without_the_cryptography_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed = memoryview(encryption.encrypt(b"plain", KEY))
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for act in (
        lambda: encryption.encrypt(b"plain", KEY),
        lambda: encryption.decrypt(sealed, KEY, "AES-GCM"),
    ):
        with pytest.raises(ModelError, match=r'pip install "inference-engine\[encryption\]"'):
            act()


@pytest.mark.parametrize("mode", ["AES-CBC", "SM4-CBC"])
def test_a_wrong_cbc_key_whose_padding_fits_by_chance_is_told_from_damage(
    mode: str, seal: Seal
) -> None:
    path = seal(MLP, KEY, mode)
    sealed = path.read_bytes()
    fits = 0
    for number in range(1, 3000):
        wrong = number.to_bytes(16, "big")
        try:
            encryption.decrypt(memoryview(sealed), wrong, mode)
        except encryption.DecryptionError:
            continue
        fits += 1
        with pytest.raises(ModelError, match=r"the key is wrong.*neither MindIR nor ONNX"):
            open_source(path, dec_key=wrong, dec_mode=mode)
        if fits == 3:
            return
    pytest.fail("no key fitted")


@pytest.mark.parametrize("mode", ["AES-CBC", "SM4-CBC"])
def test_a_damaged_cbc_file_is_not_blamed_on_the_right_key(mode: str, seal: Seal) -> None:
    path = seal(MLP, KEY, mode)
    sealed = bytearray(path.read_bytes())
    sealed[200:264] = bytes(64)
    path.write_bytes(sealed)
    with pytest.raises(ModelError, match="MindIR") as caught:
        open_source(path, dec_key=KEY, dec_mode=mode)
    assert "key" not in str(caught.value)


# The magic number, the tag, the IV's length, the nonce, the data's length and the data.
@pytest.mark.parametrize("place", [0, 3, 4, 19, 24, 28, 39, 44, 48, 60, -1])
def test_a_changed_byte_of_a_gcm_file_is_noticed(place: int, seal: Seal) -> None:
    path = seal(MLP)
    sealed = bytearray(path.read_bytes())
    sealed[place] ^= 0x55
    path.write_bytes(sealed)
    with pytest.raises(ModelError):
        open_source(path, dec_key=KEY)


@pytest.mark.parametrize(("mode", "key"), KEYS, ids=lambda each: str(each)[:7])
def test_an_encrypted_onnx_model_is_read_in_memory(
    mode: str, key: bytes, seal: Seal, tmp_path: Path
) -> None:
    plain = models.affine(tmp_path).read_bytes()
    path = seal(plain, key, mode)
    source = open_source(path, dec_key=key, dec_mode=mode)
    assert (source.format, source.path, source.data) == ("onnx", path, plain)
    assert source.graph is not None
    assert [spec.name for spec in source.graph.inputs] == ["x"]


def test_an_encrypted_onnx_model_is_never_left_to_be_read_from_its_path(
    seal: Seal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.formats.files.READ_BYTES", 100)  # larger plain files are mapped
    plain = models.affine(tmp_path)
    assert open_source(plain).data is None
    assert open_source(seal(plain.read_bytes()), dec_key=KEY).data == plain.read_bytes()


def test_external_data_of_an_encrypted_model_stays_inside_its_folder(tmp_path: Path) -> None:
    inside, blobs = tmp_path / "inside", tmp_path / "blobs"
    inside.mkdir()
    blobs.mkdir()
    plain = models.external(inside).read_bytes()
    (inside / "net.mindir").write_bytes(encryption.encrypt(plain, KEY))
    source = open_source(inside / "net.mindir", dec_key=KEY)
    assert (source.data, source.folder) == (plain, inside)

    (inside / "external.bin").rename(blobs / "external.bin")
    (inside / "external.bin").symlink_to(blobs / "external.bin")
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        open_source(inside / "net.mindir", dec_key=KEY)
    # Model and data both linked out: allowed for a plain model, which is then read by its path.
    (inside / "net.mindir").rename(blobs / "net.mindir")
    (inside / "net.mindir").symlink_to(blobs / "net.mindir")
    with pytest.raises(ModelError, match="an encrypted model cannot have"):
        open_source(inside / "net.mindir", dec_key=KEY)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (b"hello, I am no model\n", "holds a text file, encrypted; expected MindIR or ONNX"),
        (encryption.encrypt(b"x", KEY), "holds encrypted once more"),
    ],
    ids=["text", "encrypted"],
)
def test_a_file_that_holds_no_model_is_told_from_a_wrong_key(
    plain: bytes, why: str, seal: Seal
) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        open_source(seal(plain), dec_key=KEY)
    assert "key is wrong" not in str(caught.value)


def test_a_damaged_model_that_was_encrypted_is_said_to_be_damaged(
    seal: Seal, tmp_path: Path
) -> None:
    path = seal(models.affine(tmp_path).read_bytes()[:-20])
    with pytest.raises(ModelError, match="damaged ONNX file"):
        open_source(path, dec_key=KEY)


@pytest.mark.parametrize("mode", ["AES-GCM", "SM4-CBC"])
def test_the_short_way_takes_a_key_too(
    mode: str, seal: Seal, tmp_path: Path, null_backend: str
) -> None:
    path = seal(models.affine(tmp_path).read_bytes(), KEY, mode)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ModelError, match="pass its key: dec_key="):
        engine.load(path, null_backend)
    model = engine.load(path, null_backend, dec_key=KEY, dec_mode=mode)
    np.testing.assert_array_equal(model(x=x)["y"], 2 * x + 1)


def test_encrypted_bytes_in_memory_ask_for_their_key() -> None:
    with pytest.raises(ModelError, match="it is encrypted with SM4-CBC; pass its key"):
        source_from_bytes(encryption.encrypt(b"x", KEY, "SM4-CBC"))


def test_an_encrypted_file_is_described_as_the_plain_one(seal: Seal) -> None:
    file = ModelFile(seal(MLP, KEY, "AES-CBC"), dec_key=KEY, dec_mode="AES-CBC")
    found = file.description()
    plain = ModelFile(DATA / "mlp.mindir").description()
    assert found is not None
    assert plain is not None
    assert (file.format, file.encryption) == ("mindir", "AES-CBC")
    assert (found.primitives, found.parameters) == (plain.primitives, plain.parameters)
