"""What LoRA rounds add in a shifted world with other settings than a run's: what was tried (our own measurement).

The rounds of `llm/adaptation.py`, in the same world, on the same held-out states of validation scenarios and from the
same model, once for each of the settings under `lora` in params.yaml. Nothing is chosen by it.
"""

import copy
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ace import config
from ace.grid.whatif import WhatIf
from ace.llm import adaptation
from ace.llm.clients import LocalClient, open_client
from ace.llm.heldout import heldout_states, one_proposal
from ace.llm.stats import mean_interval
from ace.llm.team import read_card
from ace.llm.text import TextMap
from ace.replay import play_tasks

COLUMNS = ["grid", "proposer", "metric", "value", "ci_low", "ci_high", "n_states"]
COLUMNS += ["setting", "refinements", "simulator_calls", "llm_calls"]


def try_settings(environment, output="results"):
    """Three LoRA rounds with each of the settings; writes <output>/lora/<environment>.csv and returns it.

    A table with COLUMNS: metric lora_gain is the paired difference of the one-proposal rate, after minus before, with a
    95 % bootstrap interval over states; the calls are those of the rounds. Raises ConfigError without the language model.
    """
    params = config.load()
    params.environment(environment)
    read_model(environment)  # before any process starts
    tasks = [(environment, name) for name in params.lora]
    table = pd.DataFrame(play_tasks(_gain, tasks, f"{environment}, LoRA"), columns=COLUMNS)
    path = Path(config.root()) / output / "lora" / f"{environment}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return table


def read_model(environment):
    """(client of the model that `base.llm` names, the environment's card). Raises ConfigError where it can't be tuned."""
    settings, root = config.load().base.llm, config.root()
    if settings.client not in ("embedded", "checkpoint"):
        raise config.ConfigError(
            f"base.llm.client = {settings.client!r}: only an embedded model or a checkpoint can be tuned"
        )
    return open_client(settings, environment, 0, root), read_card(settings, environment, root)


@lru_cache(maxsize=1)
def _bench(environment):
    """What all settings share, made once a process: the shifted world, the model, the held-out states and its rate there.

    Line, factors and states are those of the model's own measurement: same seed, line from its card.
    """
    torch.set_num_threads(1)
    params = config.load()
    settings, run = params.language_model, params.base
    client, card = read_model(environment)
    world = adaptation.rescaled_world(params, environment, settings.seed)
    textmap = TextMap(world)
    world.line = textmap.line.index(card["shift"]["line_out"])
    whatif, actions = WhatIf(world), np.array(card["actions"])
    n = settings.heldout_states
    states, _ = heldout_states(world, whatif, actions, settings.shortlist, run.refine.margin, n, settings.seed)
    before = one_proposal(client, textmap, whatif, states, run.refine, settings.seed)
    return params, client, world, whatif, textmap, actions, states, before


def _gain(environment, name):
    """One row of the table."""
    params, client, world, whatif, textmap, actions, states, before = _bench(environment)
    finetune, seed = params.lora_settings(name), params.language_model.seed
    changed = params.model_copy(update={"base": params.base.model_copy(update={"finetune": finetune})})
    own = LocalClient(copy.deepcopy(client.model), client.tokenizer, client.settings, client.name)
    simulated = whatif.ac_calls
    refinements = adaptation.lora_rounds(own, world, whatif, actions, textmap, changed, finetune.every)
    spent = {"simulator_calls": whatif.ac_calls - simulated, "llm_calls": own.calls}
    after = one_proposal(own, textmap, whatif, states, params.base.refine, seed)
    gain = mean_interval(np.subtract(after, before, dtype=float), seed)
    row = {"grid": environment, "proposer": "model_after_lora", "metric": "lora_gain", **gain, "n_states": len(states)}
    return {**row, "setting": name, "refinements": sum(refinements), **spent}
