"""Trials of random configurations on training weeks, from which the embedded model learns LLM-ALSO's roles (`training.py`).

Short SAC runs learn from the first part of the training scenarios. At points of each, branches try random configurations, and the
other part of the training scenarios scores them: no validation scenario has a part in it.
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ace import config
from ace.also.branches import Branches, gain
from ace.also.summary import EPISODES, summarise
from ace.also.terms import Terms, as_weights, random_configuration
from ace.coevolve import CoEvolution
from ace.config.files import written_whole
from ace.config.streams import generator
from ace.grid.environment import own_world
from ace.grid.fastworld import training_world
from ace.rl.sac import SAC


class Part:
    """Some scenarios of a set, as a set; each keeps its own number."""

    def __init__(self, scenarios, numbers):
        self.scenarios, self.numbers = scenarios, [int(n) for n in numbers]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.scenarios[self.numbers[index]]


def make_run(environment, number, place):
    """One run with its trials: {"summaries": [...], "points": [...], "used": {...}}, kept in the folder `place`."""
    path = Path(place) / f"run={number}.json"
    if path.is_file():
        return json.loads(path.read_text())
    params = config.load()
    given, settings = params.also_model, params.settings("sac")
    train = settings.train.model_copy(update={"decisions": given.decisions, "validate_every": given.decisions, "marks": []})
    settings = settings.model_copy(update={"train": train})
    world = training_world(own_world(params.environment(environment), params.scenarios, settings.operator))
    every = world.sets["train"]
    n = round(given.share * len(every))
    scoring = np.unique(np.linspace(n, len(every) - 1, given.scored).astype(int))
    world.sets = {**world.sets, "train": Part(every, range(n))}
    seed = 1000 * given.seed + number
    learner = CoEvolution(world, SAC(world.catalogue, world.features.n, settings.sac, seed), settings, seed, lambda: (0.0, 0.0))
    branches = Branches(learner, Terms.of(learner), settings.also.decisions, Part(every, scoring))
    made = _trials(learner, branches, given, generator(seed, "signal"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        partial.write_text(json.dumps(made))
    return made


def _trials(learner, branches, given, rng):
    """Plays the run to its end and tries `configurations` at every point of it."""
    terms = Terms.of(learner)
    episodes, summaries, points, used = [], [], [], Counter(decisions=0, env_steps=0, branches=0)
    for event in learner.run():
        if event.kind != "episode":
            continue
        episodes.append((event.row["steps"], event.row["blackout"]))
        if len(episodes) < EPISODES:
            continue
        summary = asdict(summarise(learner, terms, episodes, learner.world.spec.horizon))
        summaries.append(summary)
        decisions = learner.count["decisions"]
        if len(points) >= decisions // given.every or decisions >= given.decisions:
            continue
        state, tried, control = learner.state_dict(), [], None
        configurations = [{}]  # the control
        while len(configurations) <= given.configurations:
            configurations.append(random_configuration(rng, configurations))
        for configuration in configurations:
            branch = branches.run(state, as_weights(configuration))
            used.update(decisions=branch.decisions, env_steps=branch.env_steps + branch.scoring_steps, branches=1)
            control = control or branch
            tried.append({"configuration": configuration, "gain": gain(branch, control), "survival": branch.survival})
        points.append({"decisions": decisions, "summary": summary, "trials": tried})
    used.update(decisions=learner.count["decisions"], env_steps=learner.count["env_steps"])
    return {"summaries": summaries, "points": points, "used": used}
