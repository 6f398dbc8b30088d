"""What LoRA rounds add in a shifted world with other settings than a run's: what was tried (our own measurement).

The rounds of `llm/models/lora_under_shift.py` with the embedded model, in a world with the same other limits and without
the same line, once as in a run (but no round is rolled back) and once for each of the settings under `lora` in params.yaml.
All start from the same model and look at the same held-out states of validation scenarios. Where an opponent attacks, these
states are not those of the model's own measurement, and the rates are others. Nothing is chosen by it.
"""

from functools import lru_cache

import numpy as np
import pandas as pd
import torch

from ace import config
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.models import embedded, lora_under_shift
from ace.llm.models.heldout import heldout_states, one_proposal
from ace.llm.session import read_model_manifest
from ace.llm.text import TextMap
from ace.stats import mean_interval
from ace.trained_policies import play_tasks, write_rows

AS_RUN = "as_run"
COLUMNS = ["grid", "proposer", "metric", "value", "ci_low", "ci_high", "n_states", "setting", "before"]
COLUMNS += ["refinements", "simulator_calls", "dc_calls", "env_steps", "llm_calls"]


def try_settings(environment, output="results"):
    """Three LoRA rounds with a run's settings and with each other; writes <output>/studies/lora/<environment>.csv and returns it.

    A table with COLUMNS: metric lora_gain is the paired difference of the one-proposal rate, after minus `before`, with a
    95 % interval over states; the budget is that of the rounds and of the rate after them. Raises ConfigError
    without the language model.
    """
    params = config.load()
    params.environment(environment)
    _manifest(environment)  # before any process starts
    tasks = [(environment, name) for name in (AS_RUN, *params.lora)]
    table = pd.DataFrame(play_tasks(_gain, tasks, f"{environment}, LoRA"), columns=COLUMNS)
    write_rows(table, output, "lora", environment)
    return table


def _folder(environment):
    return config.root() / embedded.TRAINED.format(env=environment)


def _manifest(environment):
    settings = config.load().base.llm.model_copy(update={"path": embedded.TRAINED})
    return read_model_manifest(settings, environment, config.root())


@lru_cache(maxsize=1)
def _bench(environment):
    """What all settings share, made once a process: (params, world, textmap, actions, held-out states, model, tokenizer)."""
    torch.set_num_threads(1)
    params, manifest = config.load(), _manifest(environment)
    settings = params.language_model
    world = lora_under_shift.rescaled_world(params, environment, settings.seed)
    textmap, actions = TextMap(world), np.array(manifest["actions"])
    world.line = textmap.line.index(manifest["shift"]["line_out"])
    world.attack_rng = np.random.default_rng([settings.seed, 11])
    margin, n = params.base.refine.margin, settings.heldout_states
    states, _ = heldout_states(world, WhatIf(world), actions, settings.shortlist, margin, n, settings.seed)
    return params, world, textmap, actions, states, *embedded.load(_folder(environment))


def _gain(environment, name):
    """One row of the table; the same whatever was measured before it in this process."""
    params, world, textmap, actions, states, model, tokenizer = _bench(environment)
    seed, finetune = params.language_model.seed, params.lora_settings(name)
    params = params.model_copy(update={"base": params.base.model_copy(update={"finetune": finetune})})
    client = LocalClient(model, tokenizer, params.base.llm, f"embedded-{environment}")  # each round makes a model of its own
    world.attack_rng, world.env_steps = np.random.default_rng([seed, 12]), 0
    whatif = WhatIf(world)
    before = one_proposal(client, textmap, whatif, states, params.base.refine, seed)
    whatif, client.calls = WhatIf(world), 0
    refinements = lora_under_shift.lora_rounds(client, world, whatif, actions, textmap, params, finetune.every)
    after = one_proposal(client, textmap, whatif, states, params.base.refine, seed)
    gain = mean_interval(np.subtract(after, before, dtype=float))
    return {
        "grid": environment, "proposer": "model_after_lora", "metric": "lora_gain", **gain, "n_states": len(states),
        "setting": name, "before": np.mean(before), "refinements": sum(refinements), "simulator_calls": whatif.ac_calls,
        "dc_calls": whatif.dc_calls, "env_steps": world.env_steps, "llm_calls": client.calls,
    }  # fmt: skip
