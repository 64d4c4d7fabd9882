#!/usr/bin/env python3
"""Writes tiny random Hugging Face checkpoints, and what transformers makes of them in float32.

    make_tiny_folders.py --out tests/golden/folders [--only NAME,...]      by hand, see requirements.txt

One folder for each checkpoint, without tokenizers, and reference.jsonl: a line for each sequence,
{"folder", "without", "ids", "logprobs"}: the natural logarithm of the probability of each id but the
first, given those before it, rounded to 7 significant digits. `without` names a feature that was
switched off for that line, null where nothing was: such lines show that the feature matters.

Weights are drawn so that every feature shows: norms are far from 1, logits far from flat. The same
versions give the same numbers.
"""

import argparse
import contextlib
import copy
import json
import pathlib
import unittest.mock

import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.muse_glimmer import modeling_muse_glimmer

CONTEXT = 256
# One token, inside a window, across blocks and windows, across many windows.
LENGTHS = (2, 7, 70, 200)
LENGTH_WITHOUT = 70


def llama(**changes):
    sizes = dict(vocab_size=131, hidden_size=40, intermediate_size=56, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=16, bos_token_id=1,
                 eos_token_id=2, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5)
    config = transformers.LlamaConfig(**(sizes | changes))
    return transformers.LlamaForCausalLM(config)


def gemma3_config(**changes):
    sizes = dict(vocab_size=140, hidden_size=32, intermediate_size=48, num_hidden_layers=7,
                 num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                 max_position_embeddings=CONTEXT, sliding_window=24, query_pre_attn_scalar=20,
                 final_logit_softcapping=6.0)
    return transformers.Gemma3TextConfig(**(sizes | changes))


def gemma3_text(**changes):
    return transformers.Gemma3ForCausalLM(gemma3_config(**changes))


def gemma3_vision():
    vision = transformers.SiglipVisionConfig(hidden_size=16, intermediate_size=16, image_size=28,
                                             num_hidden_layers=1, num_attention_heads=1)
    # The class with a vision tower applies no cap to its logits. A GGUF file takes the scale of
    # attention from the width of a head, and the pattern of windows from the architecture.
    text = gemma3_config(final_logit_softcapping=None, query_pre_attn_scalar=32)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision,
                                       mm_tokens_per_image=4, image_token_index=139,
                                       boi_token_index=137, eoi_token_index=138)
    return transformers.Gemma3ForConditionalGeneration(config)


def muse_glimmer(layers, window, **changes):
    sizes = dict(vocab_size=150, hidden_size=36, intermediate_size=48, num_hidden_layers=layers,
                 num_attention_heads=3, num_key_value_heads=1, head_dim=16, sliding_window=window,
                 max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2,
                 rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    text = transformers.MuseGlimmerTextConfig(**(sizes | changes))
    vision = transformers.models.muse_glimmer.MuseGlimmerVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        pos_emb_height=2, pos_emb_width=2, patch_size=2, layer_types=["full_attention"])
    config = transformers.MuseGlimmerConfig(
        text_config=text, vision_config=vision, out_hidden_size=64, projector_hidden_size=16,
        image_token_id=149, video_token_id=148)
    return modeling_muse_glimmer.MuseGlimmerForConditionalGeneration(config)


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 500000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 10000.0}

# name -> (model, type of the weights on disk, largest shard)
CHECKPOINTS = {
    "llama_linear": (lambda: llama(rope_parameters=LINEAR, attention_bias=True, mlp_bias=True),
                     torch.float32, "1GB"),
    "llama_llama3": (lambda: llama(rope_parameters=LLAMA3, tie_word_embeddings=True,
                                   num_key_value_heads=4), torch.float16, "20KB"),
    "llama_yarn": (lambda: llama(rope_parameters=YARN), torch.bfloat16, "1GB"),
    "gemma3_text": (lambda: gemma3_text(), torch.bfloat16, "1GB"),
    "gemma3_vision": (gemma3_vision, torch.bfloat16, "1GB"),
    "muse_glimmer_6": (lambda: muse_glimmer(6, 12), torch.bfloat16, "1GB"),
    "muse_glimmer_7": (lambda: muse_glimmer(7, 100), torch.bfloat16, "1GB"),
    "muse_glimmer_8": (lambda: muse_glimmer(8, 12, attention_bias=True), torch.bfloat16, "40KB"),
}


def randomise(model, seed):
    """Every parameter from a seed, by kind."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                centred = 0.0 if is_centred(model, name) else 1.0
                parameter.copy_(centred + 0.3 * values)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * values)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(values)
            else:
                parameter.copy_(1.5 * values / parameter.shape[-1] ** 0.5)


def is_centred(model, name):
    kind = model.config.model_type
    if kind.startswith("gemma3"):
        return True
    return kind.startswith("muse_glimmer") and name.endswith("layernorm.weight")


def text_model(model):
    return getattr(model.model, "language_model", model.model)


@contextlib.contextmanager
def set_config(config, **changes):
    before = {key: getattr(config, key) for key in changes}
    for key, value in changes.items():
        setattr(config, key, value)
    yield
    for key, value in before.items():
        setattr(config, key, value)


def replaced_forward(modules, forward):
    stack = contextlib.ExitStack()
    for module in modules:
        stack.enter_context(unittest.mock.patch.object(module, "forward", forward(module)))
    return stack


def uncentred(module):
    """The norm's forward with its weight as it is, where 1 should be added."""
    return lambda x: (module._norm(x.float()) * module.weight.float()).type_as(x)


def features(model):
    """name -> a context in which the model lacks that feature."""
    config = model.config.get_text_config()
    text = text_model(model)
    attentions = [layer.self_attn for layer in text.layers]
    kinds = {
        "gemma3_text": (modeling_gemma3.Gemma3RMSNorm, ["q_norm", "k_norm"]),
        "muse_glimmer_text": (modeling_muse_glimmer.MuseGlimmerTextCenteredRMSNorm, ["qk_norm"]),
    }
    if config.model_type not in kinds:
        return {"rope_scaling": lambda: default_rope(text)} if rope_kind(config) else {}
    norm, head_norms = kinds[config.model_type]
    full = ["full_attention"] * config.num_hidden_layers
    found = {
        "qk_norm": lambda: replaced_forward(
            [getattr(a, name) for a in attentions for name in head_norms], lambda _: lambda x: x),
        "window": lambda: set_config(config, sliding_window=CONTEXT),
        "norm_offset": lambda: replaced_forward(
            [m for m in text.modules() if isinstance(m, norm)], uncentred),
    }
    if config.final_logit_softcapping:
        found["softcap"] = lambda: set_config(config, final_logit_softcapping=1e6)
    if config.model_type == "gemma3_text":
        found["rope_of_windows"] = lambda: same_rope(text)
        found["embedding_scale"] = lambda: unittest.mock.patch.object(
            text.embed_tokens, "embed_scale", torch.tensor(1.0))
        return found
    found["gate"] = lambda: unittest.mock.patch.object(torch, "sigmoid", torch.ones_like)
    found["nope"] = lambda: set_config(config, layer_rope_theta=[1.0] * len(full))
    found["rope"] = lambda: set_config(config, layer_rope_theta=[0.0] * len(full))
    found["embedding_norm"] = lambda: replaced_forward(
        [text.embed_tokens.embed_norm], lambda _: lambda x: x)
    found["q_scale"] = lambda: set_each(attentions, qk_scale_factor=1.0)
    found["output_multiplier"] = lambda: set_config(config, output_multiplier=1.0)
    return found


def set_each(modules, **changes):
    stack = contextlib.ExitStack()
    for module in modules:
        stack.enter_context(set_config(module, **changes))
    return stack


def rope_kind(config):
    return (config.rope_parameters or {}).get("rope_type", "default") != "default"


def default_rope(text):
    rotary = text.rotary_emb
    inverse, scaling = rotary.compute_default_rope_parameters(text.config)
    return set_config(rotary, inv_freq=inverse, attention_scaling=scaling)


def same_rope(text):
    rotary = text.rotary_emb
    return set_config(rotary, sliding_attention_inv_freq=rotary.full_attention_inv_freq)


def logprobs(model, ids):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    rows = torch.log_softmax(logits, dim=-1)
    return [float(f"{rows[i, ids[i + 1]].item():.7g}") for i in range(len(ids) - 1)]


def lines_of(name, model, seed):
    generator = torch.Generator().manual_seed(seed + 1000)
    vocabulary = model.config.get_text_config().vocab_size - 13  # no ids that stand for images
    sequences = [torch.randint(0, vocabulary, (length,), generator=generator).tolist()
                 for length in LENGTHS]
    for ids in sequences:
        yield {"folder": name, "without": None, "ids": ids, "logprobs": logprobs(model, ids)}
    ids = sequences[LENGTHS.index(LENGTH_WITHOUT)]
    for feature, switched_off in features(model).items():
        if feature == "window" and model.config.get_text_config().sliding_window >= LENGTH_WITHOUT:
            continue
        with switched_off():
            yield {"folder": name, "without": feature, "ids": ids, "logprobs": logprobs(model, ids)}


def make(name, out, seed):
    build, dtype, shard = CHECKPOINTS[name]
    model = build()
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    randomise(model, seed)
    # A copy is converted: the frequencies of rope, which are no weights, stay as they are.
    copy.deepcopy(model).to(dtype).save_pretrained(out / name, max_shard_size=shard)
    (out / name / "generation_config.json").unlink(missing_ok=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).float())
    return list(lines_of(name, model.eval(), seed))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(CHECKPOINTS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "reference.jsonl").open("w") as file:
        for name in args.only.split(","):
            seed = list(CHECKPOINTS).index(name) + 1
            for line in make(name, args.out, seed):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
