"""The LoRA round: the language model is tuned on what the simulator validated (paper, algorithm step 5)."""

import copy
import math

import torch

from ace.llm.models.embedded import fit

LORA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA_BATCH = 16
LARGE = 50_000_000
"""Parameters above which activations are computed again for the gradient: the same bits, in less memory and more time."""


def lora_round(model, tokenizer, samples, settings, seed, folder=None):
    """One round: a new model, LoRA-trained on (prompt, reply) samples (cross-entropy of the reply) and merged.

    settings: config.settings.Finetune. The given model is left as it is: merging changes its base, so a copy is trained.
    folder: where the adapter is saved, or None.
    """
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=settings.rank, lora_alpha=2 * settings.rank, target_modules=LORA_MODULES, task_type="CAUSAL_LM"
        )
        adapted = get_peft_model(copy.deepcopy(model), config)
        if model.num_parameters() > LARGE:
            adapted.activation_checkpointing_enable({"use_reentrant": False})
        steps = settings.epochs * math.ceil(len(samples) / LORA_BATCH)
        fit(adapted, tokenizer, samples, steps, LORA_BATCH, settings.lr, seed)
    if folder:
        adapted.save_pretrained(folder, save_embedding_layers=False)
    tuned = adapted.merge_and_unload().eval()
    tuned.activation_checkpointing_disable()
    return tuned
