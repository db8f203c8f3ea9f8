"""Names of an adapter's tensors (LoRA), and the nodes of a diffusion model that they are for.

MindSpore Lite's rules on Ascend: a file of names, and the tensors of an update, go by what trainers
call them. Their three ways are those of diffusers ("unet.down_blocks.0.attentions.1...to_q_lora.
down.weight"), of kohya ("lora_unet_down_blocks_0_attentions_1_..._to_q.lora_down.weight", also with
Stability's numbering, "input_blocks_4_1"), and of whole checkpoints ("model.diffusion...").
"""

from __future__ import annotations

import re

_ENDINGS = ("weight", "alpha")
_WHOLE = "model.diffusion"
_KOHYA = ("lora_te1_", "lora_te2_", "lora_te_", "lora_unet_")

# Names in Stability's numbering: at which part the number is, and how many layers a block has.
_NUMBER_AT = 4
_LAYERS_PER_BLOCK = 3
_INNER = ("resnets", "attentions", "upsamplers")
_MIDDLE = {0: ("resnets", "0"), 1: ("attentions", "0"), 2: ("resnets", "1")}

# Names with kohya's dots, in this order: it writes underscores for dots and for underscores.
_JOINED = (
    ("text.model", "text_model"),
    ("input.blocks", "down_blocks"),
    ("down.blocks", "down_blocks"),
    ("middle.block", "mid_block"),
    ("mid.block", "mid_block"),
    ("output.blocks", "up_blocks"),
    ("up.blocks", "up_blocks"),
    ("transformer.blocks", "transformer_blocks"),
    ("to.q", "to_q"),
    ("to.k", "to_k"),
    ("to.v", "to_v"),
    ("to.out.0", "to_out"),
    ("proj.in", "proj_in"),
    ("proj.out", "proj_out"),
    ("emb.layers", "time_emb_proj"),
    ("self.attn", "self_attn"),
    ("q.proj", "q_proj"),
    ("k.proj", "k_proj"),
    ("v.proj", "v_proj"),
    ("out.proj", "out_proj"),
)

# Words on the adapter itself and not on the node, in this order.
_REMOVED = (
    "_lora", "lora.", "te1.", "te2.", "te.", "processor.", "text_encoder.", "text_encoder_2.",
    "lora_linear_layer.", "linear_layer.",
)  # fmt: skip


def node_of(name: str) -> str:
    """Return the node, without the last part of its name, that an adapter's tensor is for.

    "" for a name that no trainer gives.
    """
    if not name.endswith(_ENDINGS):
        return ""
    try:
        return _node_of(name)
    except (IndexError, ValueError, KeyError):
        return ""


def _node_of(name: str) -> str:
    prefix = ""
    is_whole = name.startswith(_WHOLE)
    if is_whole:
        parts = name.split(".")
        block = f"{parts[2]}.{parts[3]}"
        prefix = f"{block}/{block}.{parts[4]}/"
        name = ".".join(parts[5:]).replace("lora_up.", "").replace("lora_down.", "")
        name = name.replace("net.0", "net.net.0")
    name = _from_kohya(_renumbered(name.replace("unet.", "")))
    name = name.replace("out_0", "out").replace("out.0", "out")
    name = name.replace(".down.", ".").replace(".up.", ".")
    for text in _REMOVED:
        name = name.replace(text, "")
    # A number belongs to what is before it: "down_blocks.0".
    path = re.sub(r"\.(?!\d+(?:\.|$))", "/", name.rpartition(".")[0])
    path = path.replace("to_out", "to_out.0")
    if is_whole:
        path = path.replace("to_out.0", "to_out/to_out.0")
    return f"/{prefix}{path}"


def _renumbered(name: str) -> str:
    """Return a name with Stability's numbers of blocks as diffusers has them."""
    if not any(blocks in name for blocks in ("input_blocks", "middle_block", "output_blocks")):
        return name
    parts = name.split("_")
    number = int(parts[_NUMBER_AT])
    before, after = parts[:_NUMBER_AT], parts[_NUMBER_AT + 1 :]
    if "input_blocks" in name:
        block, layer = divmod(number - 1, _LAYERS_PER_BLOCK)
        if "op" in name:
            kind, layer = "downsamplers", 0
        else:
            kind = _INNER[int(after[0])]
        after = [str(block), kind, str(layer), *after[1:]]
    elif "middle_block" in name:
        after = [*_MIDDLE[number], *after]
    else:
        block, layer = divmod(number, _LAYERS_PER_BLOCK)
        inner = int(after[0])
        after = [str(block), _INNER[inner], str(layer if inner < 2 else 0), *after[1:]]
    return "_".join([*before, *after])


def _from_kohya(name: str) -> str:
    if not name.startswith(_KOHYA):
        return name
    for prefix in _KOHYA:
        name = name.replace(prefix, "")
    name = name.replace("_", ".")
    for dotted, joined in _JOINED:
        name = name.replace(dotted, joined)
    if "emb" in name and "time.emb.proj" not in name:
        name = re.sub(r"\.\d+(?=\D*$)", "", name, count=1)
    if ".in." in name:
        name = name.replace("in.layers.2", "conv1")
    if ".out." in name:
        name = name.replace("out.layers.3", "conv2")
    if "downsamplers" in name or "upsamplers" in name:
        name = name.replace("op", "conv")
    if "skip" in name:
        name = name.replace("skip.connection", "conv_shortcut")
    name = name.replace("time.emb.proj", "time_emb_proj")
    return name.replace("conv.shortcut", "conv_shortcut")
