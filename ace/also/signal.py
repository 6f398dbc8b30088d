"""The learning signal of a run: at some points the language model diagnoses the training and proposes shaping, branches test it.

At every `also.every` decisions, between two episodes:

    1. Critic      summary -> diagnosis
    2. Generator   diagnosis, trials of this point -> `candidates` new configurations
    3. branches    one a configuration, and one without any shaping as control; the configuration in force, if any, is tested too
    4. the best one that beats the control by `margin` is in force until the next point; if none does, 2. and 3. are done again
       with these trials, in all `rounds` times; then the run goes on unshaped

Where nobody proposes anything valid, the configuration in force is tested alone; without one there is no branch. Controls: random
configurations, the same test and as many of them; the model's first configuration, untested. Guard (ace_guarded): g_LLM's
judgements are held back, and at a point those since the last one are the only candidate: they enter D_LLM if the branch with
them beats the control, else never. There is no point at the end of a run, where no update is left that they could change: what
was judged after the last one stays untested.
"""

from collections import Counter
from dataclasses import asdict

from ace.also.branches import Branches, gain
from ace.also.roles import Critic, Generator, Trial, best_of, diagnosis_text, weights_text
from ace.also.summary import summarise
from ace.also.terms import TERMS, ShapedSampler, Terms, as_weights, random_configuration
from ace.config.streams import generator
from ace.rl.buffers import Transition

PHASE = {"decisions": 0, "updates": 0, "env_steps": 0, "scoring_steps": 0}
COUNTS = ("points", "branches", "died", "promoted")
JUDGEMENTS = ("judgements_tested", "judgements_promoted")


class LearningSignal:
    """Of one run. It replaces the learner's sampler of D_mix; the loop itself knows nothing of it.

    counts: points; branches, died of them; promoted; of a model, what `roles` counts; of a guard, what became of judgements.
    used: PHASE of all branches. points: what became of each, for the manifest.
    """

    def __init__(self, learner, settings, seed, recorder=None):
        """learner: coevolve.CoEvolution, at its start; settings: config.settings.Settings; recorder: of a model, or None."""
        self.learner, self.settings, self.terms = learner, settings, Terms.of(learner)
        self.branches = Branches(learner, self.terms, settings.also.decisions)
        self.sampler = learner.d_mix = ShapedSampler(learner.d_mix, self.terms)
        self.rng = generator(seed, "signal")
        self.critic, self.generator = (Critic(recorder), Generator(recorder)) if recorder else (None, None)
        self.episodes, self.points, self.configuration = [], [], {}
        self.held, guards = [], settings.also.source == "guard"  # [(Transition, r_original, r_refined)]
        self._counts, self.used = Counter(dict.fromkeys(COUNTS + JUDGEMENTS * guards, 0)), dict(PHASE)
        if guards:
            learner.keep_judged = lambda *judged, is_refined: self.held.append(judged)

    @property
    def counts(self):
        found = Counter(self._counts)
        for role in filter(None, (self.critic, self.generator)):
            found.update(role.counts)  # a sum of Counters would drop what is 0
        if self.settings.also.source == "guard":
            found["judgements_untested"] = len(self.held)
        return found

    @property
    def budget(self):
        """Of all branches so far: decisions, updates, environment steps with those of scoring."""
        steps = self.used["env_steps"] + self.used["scoring_steps"]
        return {"decisions": self.used["decisions"], "updates": self.used["updates"], "env_steps": steps}

    def after_episode(self, row):
        """To be called after every training episode. row: of its Event."""
        self.episodes.append([int(row["steps"]), bool(row["blackout"])])
        decisions, s = self.learner.count["decisions"], self.settings
        if self._counts["points"] < decisions // s.also.every and decisions < s.train.decisions:
            self._counts["points"] = decisions // s.also.every
            self._point(decisions)

    def _point(self, decisions):
        point = {"decisions": decisions, "in_force": self.configuration, "diagnosis": None, "trials": [], "promoted": None}
        self.points.append(point)
        if self.settings.also.source == "guard":
            self._judge(point)
            return
        also, propose = self.settings.also, self._proposer(point)
        if not also.tested:
            for configuration in propose([], [], 1):
                self._promote(configuration, point)
            return
        candidates, trials, state = [self.configuration] if self.configuration else [], [], None
        for _ in range(also.rounds):
            candidates += propose(trials, [*candidates, *(trial.configuration for trial in trials)], also.candidates)
            if candidates and state is None:
                state = self.learner.state_dict()
                control = self._branch(state, {}, point)
            trials += [Trial(each, gain(self._branch(state, each, point), control)) for each in candidates]
            best = best_of(trials)
            if best and best.gain > also.margin:
                self._promote(best.configuration, point)
                return
            candidates = []
        if trials:
            self._promote({}, point)

    def _proposer(self, point):
        """(trials, known, n) -> n new configurations, by the model or at random; none where the diagnosis can't be parsed."""
        seed = lambda: int(self.rng.integers(2**31))  # noqa: E731
        if self.settings.also.source == "random":
            return self._random
        summary = summarise(self.learner, self.terms, self.episodes, self.learner.world.spec.horizon)
        failure = self.critic.diagnose(summary, seed())
        if failure is None:
            return lambda trials, known, n: []
        point["diagnosis"] = diagnosis_text(failure, summary)
        return lambda trials, known, n: self.generator.propose(point["diagnosis"], trials, known, n, seed)

    def _random(self, trials, known, n):
        found = []
        while len(found) < n:
            found.append(random_configuration(self.rng, [*known, *found]))
        return found

    def _branch(self, state, configuration, point, judgements=None):
        branch = self.branches.run(state, as_weights(configuration), judgements or [])
        for name in PHASE:
            self.used[name] += getattr(branch, name)
        self._counts.update(branches=1, died=int(branch.died is not None))
        said = {"configuration": weights_text(configuration)} if judgements is None else {"judgements": len(judgements)}
        result = {name: getattr(branch, name) for name in ("score", "survival", "died", *PHASE)}
        point["trials"].append({**said, **result})
        return branch

    def _promote(self, configuration, point):
        self._counts["promoted"] += bool(configuration)
        self.configuration = point["promoted"] = configuration
        self.sampler.weights = as_weights(configuration)

    def _judge(self, point):
        """The guard's test of what g_LLM has judged since the last point."""
        held, self.held = self.held, []
        if not held:
            return
        state = self.learner.state_dict()
        control = self._branch(state, {}, point, [])
        better = gain(self._branch(state, {}, point, held), control)
        self._counts["judgements_tested"] += len(held)
        if better is not None and better > self.settings.also.margin:
            for judged in held:
                self.learner.d_llm.add(*judged, is_refined=False)
            self._counts.update(promoted=1, judgements_promoted=len(held))
            point["promoted"] = {"judgements": len(held)}

    # --- what is shown and kept ---------------------------------------------------------------------------------------

    def row(self):
        """For the training curve: the weights in force, and decisions of all branches so far."""
        weights = {f"weight_{term}": self.configuration.get(term, 0.0) for term in TERMS}
        return {**weights, "branch_decisions": self.used["decisions"]}

    def state_dict(self):
        roles = {name: dict(role.counts) for name in ("critic", "generator") if (role := getattr(self, name))}
        return {
            "rng": self.rng.bit_generator.state, "episodes": self.episodes, "points": self.points,
            "configuration": self.configuration, "counts": dict(self._counts), "used": dict(self.used),
            "held": [[asdict(judged), *rewards] for judged, *rewards in self.held], "roles": roles,
        }  # fmt: skip

    def load_state_dict(self, saved):
        self.rng.bit_generator.state = saved["rng"]
        self.episodes, self.points = [list(each) for each in saved["episodes"]], list(saved["points"])
        self.configuration, self.used = dict(saved["configuration"]), dict(saved["used"])
        self._counts = Counter(saved["counts"])
        self.held = [(Transition(**judged), *rewards) for judged, *rewards in saved["held"]]
        self.sampler.weights = as_weights(self.configuration)
        for name, counts in saved["roles"].items():
            getattr(self, name).counts = Counter(counts)
