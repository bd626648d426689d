"""Tiny checkpoints of jina-embeddings-v3 with adapters of tasks, as Jina publishes them and as PEFT saves them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from embedding_folder import write_json
from tiny_encoders import make_encoder, rewrite_config, write_modules

FAMILY = "jina_embeddings_v3"
TASKS = {
    "retrieval.query": "Represent the query: ",
    "retrieval.passage": "Represent the document: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}
RANK, ALPHA = 4, 3
# A and B of all tasks, ``[tasks, rank, inputs]`` and ``[tasks, outputs, rank]``, by the module's published name.
AllTasks = dict[str, tuple[torch.Tensor, torch.Tensor]]


def make_adapters(folder: Path) -> AllTasks:
    """Random matrices for each linear and each table of rows of a checkpoint."""
    generator, made = torch.Generator().manual_seed(7), {}
    for name, weight in sorted(load_file(folder / "model.safetensors").items()):
        if name.endswith(".weight") and weight.ndim == 2:
            num_outputs, num_inputs = reversed(weight.shape) if is_table(name) else weight.shape
            shapes = (len(TASKS), RANK, num_inputs), (len(TASKS), num_outputs, RANK)
            a, b = (0.3 * torch.randn(shape, generator=generator) for shape in shapes)
            made[name.removesuffix(".weight")] = a, b
    return made


def is_table(name: str) -> bool:
    return "embeddings" in name


def merged(folder: Path, adapters: AllTasks, task: str, place: Path) -> transformers.PreTrainedModel:
    """The model of `transformers` with the adapter of a task in its weights, by arithmetic written by hand."""
    shutil.copytree(folder, place)
    tensors, index = load_file(folder / "model.safetensors"), list(TASKS).index(task)
    for module, (a, b) in adapters.items():
        change = (b[index].double() @ a[index].double()) * (ALPHA / RANK)
        weight = tensors[f"{module}.weight"]
        tensors[f"{module}.weight"] = (weight + (change.t() if is_table(module) else change)).float()
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return transformers.AutoModel.from_pretrained(place, dtype=torch.float32).eval()


def publish(folder: Path, adapters: AllTasks | None = None) -> None:
    """Rewrites a checkpoint as Jina publishes it: its own code's names, and all adapters among the weights."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if adapters is None or module not in adapters:
            tensors[f"roberta.{name}"] = tensor
            continue
        a, b = adapters[module]
        if is_table(module):
            a, b = a.mT.contiguous(), b.mT.contiguous()
        beside = f"roberta.{module}.parametrizations.weight"
        tensors |= {f"{beside}.original": tensor, f"{beside}.0.lora_A": a, f"{beside}.0.lora_B": b}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    theta = json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"]
    rewrite_config(
        folder,
        architectures=["XLMRobertaModel"], model_type="xlm-roberta", position_embedding_type="rotary",
        rotary_emb_base=theta, rope_parameters=None, lora_adaptations=list(TASKS), lora_rank=RANK, lora_alpha=ALPHA,
        task_instructions=TASKS, max_position_embeddings=66,
    )  # fmt: skip


def write_peft(folder: Path, adapters: AllTasks) -> None:
    """Writes the adapter of each task to a folder of its own, as PEFT saves it for the classes of `transformers`."""
    for index, task in enumerate(TASKS):
        tensors: dict[str, torch.Tensor] = {}
        for module, (a, b) in adapters.items():
            of_table = "embedding_" if is_table(module) else ""
            for own, rows in _modules_of_transformers(module, b[index]).items():
                beside = f"base_model.model.{own}.lora_{of_table}"
                last = "" if of_table else ".weight"
                tensors |= {f"{beside}A{last}": a[index].clone(), f"{beside}B{last}": rows.contiguous()}
        own_folder = folder / task.replace(".", "_").replace("-", "_")
        own_folder.mkdir()
        save_file(tensors, own_folder / "adapter_model.safetensors", {"format": "pt"})
        write_json(own_folder / "adapter_config.json", {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA})


def _modules_of_transformers(module: str, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """The names that its classes have for a published module, with their rows of B."""
    module = module.replace("encoder.layers", "layers").replace("mixer.out_proj", "self_attn.o_proj")
    if not module.endswith("mixer.Wqkv"):
        return {module: b}
    parts = zip(("q", "k", "v"), b.chunk(3), strict=True)
    return {module.replace("mixer.Wqkv", f"self_attn.{part}_proj"): rows for part, rows in parts}


def name_own_code(folder: Path) -> None:
    """Names the code of Jina's that reads the checkpoint elsewhere, as the published files do."""
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [modules[0] | {"type": "custom_st.Transformer"}, *modules[1:]])
    code = "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"
    rewrite_config(folder, auto_map={"AutoModel": code})


def make_jina(folder: Path, layout: str) -> AllTasks:
    """A checkpoint with tasks in one of both layouts, "jina" or "transformers", and its modules of vectors."""
    make_encoder(FAMILY, folder)
    adapters = make_adapters(folder)
    if layout == "jina":
        publish(folder, adapters)
    else:
        write_peft(folder, adapters)
    write_modules(folder, "mean_tokens", normalizes=True)
    if layout == "jina":
        name_own_code(folder)
    write_json(folder / "config_sentence_transformers.json", {"prompts": TASKS, "default_prompt_name": None})
    return adapters
