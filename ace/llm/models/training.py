"""From a corpus to the committed model: train, save, measure, and note in its manifest what it took."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from ace.llm.clients import LocalClient
from ace.llm.models import embedded, lora_under_shift
from ace.llm.models.critic_rates import critic_rows
from ace.llm.models.heldout import JUDGED, heldout_states, save_states
from ace.llm.models.rates import rates
from ace.llm.models.samples import CRITIC_SHARE, Writer

UNSEEN = 64
"""Samples for the held-out loss on the training curve."""


def train(params, corpus, textmap, folder, progress=False):
    """Train the embedded model on a corpus and save it. Returns the training curve.

    params: config.Params; folder: gets model.safetensors, config.json, tokenizer.json, training_curve.csv.
    """
    settings = params.language_model
    n = settings.steps * settings.batch_size
    writer = Writer(textmap, corpus)
    pairs = writer.draw(n, settings.seed)
    # The same states with other tries: shows overfitting to the tries, while `rates` looks at other scenarios.
    unseen = writer.draw(min(n, UNSEEN), settings.seed + 1)
    tokenizer = embedded.make_tokenizer(textmap, [text for pair in pairs + unseen for text in pair])
    model = embedded.make_model(tokenizer, settings)
    with embedded.one_thread():
        curve = embedded.fit(
            model, tokenizer, pairs, settings.steps, settings.batch_size, settings.lr, settings.seed, unseen, progress
        )
    embedded.save(model, tokenizer, folder)
    curve = pd.DataFrame(curve).round(4)
    curve.to_csv(Path(folder) / "training_curve.csv", index=False, lineterminator="\n")
    return curve


def measure(params, environment, corpus, world, whatif, textmap, folder):
    """All rates of the saved model on held-out states: writes rates.csv, heldout.npz and model_manifest.json.

    f_LLM's proposals, g_LLM's signs, and what LoRA rounds add under a shift. Returns (rates, records of the calls that
    f_LLM's rates took).
    """
    settings, run, n = params.language_model, params.base, params.language_model.heldout_states
    before = (whatif.ac_calls, whatif.dc_calls, world.env_steps)
    states, episodes = heldout_states(
        world, whatif, corpus.actions, settings.shortlist, run.refine.margin, n, settings.seed, JUDGED * n
    )
    save_states(states[: run.finetune.heldout], Path(folder) / "heldout.npz")
    model, tokenizer = embedded.load(folder)
    client, unmasked = (
        LocalClient(model, tokenizer, run.llm.model_copy(update=changes), f"embedded-{environment}")
        for changes in ({}, {"masked": False})
    )
    ranking = frequency_ranking(textmap, corpus)
    table, records = rates(environment, whatif, textmap, client, states, run.refine, ranking, settings.seed, unmasked)
    judged = critic_rows(whatif, textmap, client, episodes, corpus.actions, run.shape, n, settings.seed, unmasked)
    spent = {"simulator_calls": whatif.ac_calls - before[0], "dc_calls": whatif.dc_calls - before[1],
             "env_steps": world.env_steps - before[2], "llm_calls": client.calls + unmasked.calls}  # fmt: skip
    adapted, shift = lora_under_shift.lora_under_shift(params, environment, corpus, textmap, client)
    more = pd.DataFrame([{"grid": environment, **row} for row in judged + adapted], columns=table.columns)
    table = pd.concat([table, more], ignore_index=True)
    table.to_csv(Path(folder) / "rates.csv", index=False, lineterminator="\n")
    manifest = {
        "environment": environment,
        "scale": params.scale,
        "architecture": "Qwen2, from scratch, one word one token",
        "parameters": embedded.count_parameters(model),
        "vocabulary": len(tokenizer),
        "settings": settings.model_dump(),
        "temperature": run.llm.temperature,
        "corpus": {
            "split": "train", "states": len(corpus.visits), "episodes": len(corpus.episodes),
            "samples": settings.steps * settings.batch_size, "critic_share": CRITIC_SHARE,
        },
        "actions": [int(a) for a in corpus.actions],
        "ranking": [int(a) for a in ranking],
        "budget": corpus.budget,
        "measuring": {"split": "validation", "states": len(states), **spent},
        "shift": shift,
        "rates": {f"{r.proposer}.{r.metric}": [r.value, r.ci_low, r.ci_high] for r in table.itertuples()},
        "limits": "Knows one grid and the actions of its set; speaks only the language of ace/llm/text.py.",
    }  # fmt: skip
    (Path(folder) / "model_manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return table, records


def frequency_ranking(textmap, corpus):
    """The set's action ids, the most frequent label first: what a lookup table would propose."""
    writer = Writer(textmap, corpus)
    counts = np.bincount([writer.label(visit) for visit in corpus.visits], minlength=len(corpus.actions))
    return corpus.actions[np.argsort(-counts, kind="stable")]
