"""What LoRA rounds add when the world is no longer that of the corpus (our own measurement, not one of the paper's).

The shift: thermal limits of every line scaled anew by a seeded factor, and one much-loaded line out of service for whole
episodes. In the shifted world the model refines states of danger of training scenarios and is tuned on its own
validated answers, round after round; its one-proposal rate is measured before and after, on validation scenarios.
"""

import copy
from dataclasses import replace

import numpy as np

from ace.episodes import decisions, do_nothing
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient, Recorder
from ace.llm.finetune import lora_round
from ace.llm.models.corpus import in_turn
from ace.llm.models.heldout import heldout_states, mixed_episodes, one_proposal
from ace.llm.policy_actor import BadCase, PolicyActor
from ace.stats import mean_interval

FACTORS = (0.85, 1.1)
"""Range of the lines' new factors."""
ROUNDS = 3
"""LoRA rounds."""
PER_ROUND = 3
"""A round comes after heldout_states / PER_ROUND improvements: 100 of 300."""
AT_ONCE, PATIENCE = 32, 4
"""Cases refined in one batch; a round comes after this many cases for each improvement that is wanted, in any case."""
TRIED, LASTS = 3, 48
"""A line may be taken out if doing nothing then lasts this many steps in this many training scenarios."""


class ShiftedWorld(FastWorld):
    """A fast world with other thermal limits and a line that is out of service for whole episodes."""

    def __init__(self, world, factors, line=None):
        """world: a World of its own, whose thermal limits are changed; factors: (n_line,); line: index, or None."""
        world.env.set_thermal_limit(world.env.get_thermal_limit() * factors)
        super().__init__(world, attack_rng=np.random.default_rng(0))
        self.line = line

    def _first_state(self, seed):
        state, line = super()._first_state(seed), self.line
        if line is None:
            return state
        topo, status, cooldown = (a.copy() for a in (state.topo, state.line_status, state.cooldown_line))
        topo[[self.catalogue.line_or_pos[line], self.catalogue.line_ex_pos[line]]] = -1
        # Who reconnects lines waits for their cooldown: this one outlasts the episode.
        status[line], cooldown[line] = False, self.spec.horizon + 2
        before = replace(state, t=-1, topo=topo, line_status=status, cooldown_line=cooldown)
        state = self._engine.advance(before, 0, *self._injections(0), ahead=self._forecast(0)).next_state
        state.overflow = np.zeros_like(state.overflow)
        return state


def shifted_world(params, environment, visits, seed):
    """The shifted world of an environment (by name). visits: of the corpus, for what is much loaded; seed: of the factors.

    The line is the one with the highest mean loading whose loss the grid survives.
    """
    shifted = rescaled_world(params, environment, seed)
    loading = np.mean([visit.state.rho for visit in visits], axis=0)
    lasted = {}
    for line in np.argsort(-loading, kind="stable").tolist():
        shifted.line = line
        lasted[line] = min(_lasts(shifted, in_turn(shifted.sets["train"], number)) for number in range(TRIED))
        if lasted[line] >= LASTS:
            break
    # On a hard grid none may last so long: then the one that lasts longest, of equals the most loaded.
    shifted.line = max(lasted, key=lasted.get)
    return shifted


def rescaled_world(params, environment, seed, line=None):
    """The world of an environment with the thermal limits of that seed and without that line (index), if any."""
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    factors = np.random.default_rng([seed, 8]).uniform(*FACTORS, size=world.catalogue.n_line)
    return ShiftedWorld(world, factors, line)


def _lasts(world, index):
    """Steps, up to LASTS, that doing nothing survives in a training scenario."""
    for _ in decisions(world, world.reset("train", index), do_nothing, until=LASTS):
        pass
    return min(world.t, LASTS)


def lora_under_shift(params, environment, corpus, textmap, client):
    """(rows, facts): rows {proposer, metric, value, ci_low, ci_high, n_states}, and for the manifest what it took.

    client: a LocalClient, left as it is. Proposers model_before_lora and model_after_lora; metric one_proposal, and
    lora_gain, the paired difference after - before on the same states, with a 95 % interval over states.
    """
    settings, run, n = params.language_model, params.base, params.language_model.heldout_states
    world = shifted_world(params, environment, corpus.visits, settings.seed)
    whatif = WhatIf(world)
    states, _ = heldout_states(world, whatif, corpus.actions, settings.shortlist, run.refine.margin, n, settings.seed)
    # A model of its own, so that the rounds leave the given one as it is.
    own = LocalClient(copy.deepcopy(client.model), client.tokenizer, client.settings, client.name)
    before = one_proposal(own, textmap, whatif, states, run.refine, settings.seed)
    refinements = lora_rounds(own, world, whatif, corpus.actions, textmap, params, max(1, n // PER_ROUND))
    after = one_proposal(own, textmap, whatif, states, run.refine, settings.seed)
    difference = np.subtract(after, before, dtype=float)
    columns = {("model_before_lora", "one_proposal"): before, ("model_after_lora", "one_proposal"): after,
               ("model_after_lora", "lora_gain"): difference}  # fmt: skip
    rows = [
        {"proposer": proposer, "metric": metric, **mean_interval(values), "n_states": len(states)}
        for (proposer, metric), values in columns.items()
    ]
    facts = {
        "factors": list(FACTORS), "line_out": textmap.line[world.line], "refinements": refinements,
        "simulator_calls": whatif.ac_calls, "dc_calls": whatif.dc_calls, "env_steps": world.env_steps,
        "llm_calls": own.calls,
    }  # fmt: skip
    return rows, facts


def lora_rounds(client, world, whatif, actions, textmap, params, wanted):
    """LoRA rounds on the model's own validated answers, in place: one after every `wanted` improvements.

    Returns the improvements of each round, fewer than wanted where the model rarely finds any.
    """
    run, seed = params.base, params.language_model.seed
    states = _training_states(world, whatif, actions, seed)
    actor, rng = PolicyActor(Recorder(client), textmap, whatif, run.refine), np.random.default_rng([seed, 9])
    answers, gains, counts = [], [], []
    for number in range(1, ROUNDS + 1):
        had, tried = len(answers), 0
        while len(answers) < had + wanted and tried < PATIENCE * wanted:
            cases = [BadCase(i, state, 0, 0.0) for i, state in zip(range(AT_ONCE), states, strict=False)]
            if not cases:
                break
            tried += len(cases)
            for found in actor.refine(cases, int(rng.integers(2**31))):
                if found is not None and found.improved:
                    answers.append((found.prompt, found.reply))
                    gains.append(found.reward - found.r_original)
        counts.append(len(answers) - had)
        if not answers:
            break
        # As in a run: drawn by gain (Eq. 8), from all that was validated so far.
        weights = np.exp((np.array(gains) - max(gains)) / run.buffers.tau)
        drawn = rng.choice(len(answers), run.finetune.samples, p=weights / weights.sum())
        samples = [answers[i] for i in drawn]
        client.model = lora_round(client.model, client.tokenizer, samples, run.finetune, 1000 * seed + number)
    return counts


def _training_states(world, whatif, actions, seed):
    """Yields states of danger from training scenarios, every second one on average."""
    rng = np.random.default_rng([seed, 10])
    for episode in mixed_episodes(world, whatif, actions, "train", seed):
        yield from (visit.state for visit in episode if rng.random() < 0.5)
