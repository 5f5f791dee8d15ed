#!/usr/bin/env python3
"""Writes huggingface_models.json: losses and gradients of tiny models as Hugging Face computes them.

    pip install torch transformers && tests/golden/make_huggingface_models.py

Weights are a formula, so that the file stays small; of each
gradient it keeps the length and the product with one fixed direction, both in double precision.
The shapes are those of tests/model/shapes.h.
"""
import json
import pathlib

import numpy as np
import torch
import transformers


def mixed(parameter, count):
    """32 bits for each element: a hash of its number and its parameter's."""
    h = (np.arange(count, dtype=np.uint64) + (parameter << 20)) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h


def values(parameter, count, centre, width):
    """Multiples of width / 512 around centre: exact in FP32."""
    return centre + width * ((mixed(parameter, count) % 1025).astype(np.float64) - 512) / 512


def describe(model, tokens, targets):
    parameters = list(model.named_parameters())
    for number, (name, parameter) in enumerate(parameters):
        is_matrix = parameter.dim() == 2
        centre = 1.0 if not is_matrix and not name.endswith("bias") else 0.0
        filled = values(number, parameter.numel(), centre, 0.5)
        parameter.data = torch.tensor(filled).reshape(parameter.shape)
    logits = model(input_ids=torch.tensor(tokens)).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1, reduction="sum"
    )
    loss.backward()
    gradients = []
    for number, (name, parameter) in enumerate(parameters):
        gradient = parameter.grad.flatten().numpy()
        direction = values(number + 500, gradient.size, 0.0, 1.0)
        gradients.append(
            {
                "name": name,
                "shape": list(parameter.shape),
                "length": float(np.linalg.norm(gradient)),
                "product": float(gradient @ direction),
            }
        )
    return {"tokens": tokens, "targets": targets, "loss": loss.item(), "gradients": gradients}


def make_llama(tied):
    config = transformers.LlamaConfig(
        vocab_size=53,
        hidden_size=18,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=6,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def make_gpt2(tied):
    config = transformers.GPT2Config(
        vocab_size=53,
        n_embd=21,
        n_inner=45,
        n_layer=2,
        n_head=3,
        n_positions=19,
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    return transformers.GPT2LMHeadModel(config).double().eval()


def main():
    random = np.random.default_rng(5)
    tokens = random.integers(0, 53, (2, 11)).tolist()
    targets = random.integers(-1, 53, (2, 11))
    targets[0, 3] = targets[1, 10] = -1
    models = {}
    for tied in (False, True):
        suffix = "_tied" if tied else ""
        models["llama" + suffix] = describe(make_llama(tied), tokens, targets.tolist())
        models["gpt2" + suffix] = describe(make_gpt2(tied), tokens, targets.tolist())
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    out = pathlib.Path(__file__).with_name("huggingface_models.json")
    out.write_text(json.dumps({"versions": versions, "models": models}, indent=1) + "\n")


if __name__ == "__main__":
    main()
