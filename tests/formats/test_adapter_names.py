"""Names of LoRA tensors, and the nodes that they mean; the nodes are written out by hand."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import of_nodes
from onnx import helper

import engine
from engine.formats.adapter_names import node_of

TO_Q = "/down_blocks.0/attentions.1/transformer_blocks.0/attn1/to_q"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("unet.down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_q.lora.down.weight", TO_Q),
        (
            "down_blocks.0.attentions.1.transformer_blocks.0.attn1.processor.to_q_lora.up.weight",
            TO_Q,
        ),
        (
            "lora_unet_down_blocks_0_attentions_1_transformer_blocks_0_attn1_to_q.lora_down.weight",
            TO_Q,
        ),
        # (2 - 1) of Stability's input blocks is layer 1 of block 0.
        ("lora_unet_input_blocks_2_1_transformer_blocks_0_attn1_to_q.alpha", TO_Q),
        (
            "lora_unet_output_blocks_4_1_proj_in.lora_up.weight",
            "/up_blocks.1/attentions.1/proj_in",
        ),
        ("lora_unet_middle_block_1_proj_in.alpha", "/mid_block/attentions.0/proj_in"),
        (
            "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_out.0.lora.weight",
            "/mid_block/attentions.0/transformer_blocks.0/attn2/to_out.0",
        ),
        (
            "lora_te1_text_model_encoder_layers_3_self_attn_q_proj.lora_down.weight",
            "/text_model/encoder/layers.3/self_attn/q_proj",
        ),
        (
            "text_encoder.text_model.encoder.layers.3.self_attn.q_proj.lora_linear_layer.up.weight",
            "/text_model/encoder/layers.3/self_attn/q_proj",
        ),
        (
            "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn1.to_q.lora_up.weight",
            "/input_blocks.4/input_blocks.4.1/transformer_blocks.0/attn1/to_q",
        ),
        ("fc1.bias", ""),
        ("lora_unet_input_blocks_x_1_proj_in.alpha", ""),
        ("lora_unet_middle_block_7_proj_in.alpha", ""),
        ("model.diffusion.weight", ""),
    ],
)
def test_an_adapters_tensor_means_a_node(name: str, node: str) -> None:
    assert node_of(name) == node


def attention(path: Path) -> Path:
    """y = x @ W, where the node is one of a diffusion model's, and the weight has no good name."""
    nodes = [helper.make_node("MatMul", ["x", "onnx::MatMul_77"], ["y"], name=f"{TO_Q}/MatMul")]
    weights = {"onnx::MatMul_77": np.eye(2, dtype=np.float32)}
    onnx.save(of_nodes(nodes, {"x": [1, 2]}, {"y": [1, 2]}, weights), path)
    return path


@pytest.mark.parametrize(
    "declared",
    [
        f"{TO_Q}",
        "lora_unet_down_blocks_0_attentions_1_transformer_blocks_0_attn1_to_q.lora_down.weight",
    ],
)
def test_lora_tensors_are_added_to_the_weights_of_their_nodes(
    tmp_path: Path, null_backend: str, declared: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_text(f"{declared}\n")
    config = {
        "ascend_context": {"variable_weights_file": str(names)},
        "common_context": {"variable_weights_update": "add"},
    }
    path = attention(tmp_path / "attention.onnx")
    tensor = engine.Tensor(np.float32([[0, 5], [0, 0]]))
    tensor.name = "unet.down_blocks.0.attentions.1.transformer_blocks.0.attn1.to_q.lora.up.weight"
    with engine.load(path, null_backend, config=config) as model:
        x = np.float32([[1, 2]])
        assert model(x=x)["y"].tolist() == [[1, 2]]
        model.update_weights([[tensor]])
        assert model(x=x)["y"].tolist() == [[1, 7]]  # x @ [[1, 5], [0, 1]]


def test_a_name_that_no_trainer_gives_is_refused(tmp_path: Path, null_backend: str) -> None:
    path = attention(tmp_path / "attention.onnx")
    with pytest.raises(engine.InputError, match="neither a weight nor a node with one"):
        engine.load(path, null_backend, variable_weights=["unet.up_blocks.9.to_q.weight"])
