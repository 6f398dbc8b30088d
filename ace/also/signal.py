"""The learning signal of a run: at some points the language model diagnoses the training and proposes shaping, branches test it.

At every `also.every` decisions, between two episodes:

    1. Critic      summary -> diagnosis
    2. Generator   diagnosis, trials so far -> up to `candidates` configurations
    3. branches    one a configuration, and one without any shaping as control; so does what is in force, if anything is
    4. the best one that beats the control by `margin` is in force until the next point; if none does, 2. and 3. are done again
       with these trials, in all `rounds` times; then the run goes on unshaped

Where nobody proposes anything valid there is no test, and what is in force stays. Controls: random configurations, the same test;
the model's first configuration, untested. Guard (ace_guarded): g_LLM's judgements of D_LLM are held back, and at a point those
since the last one are the only candidate: they enter D_LLM if the branch with them beats the control.
"""

from collections import Counter

from ace.also.branches import Branches, gain
from ace.also.roles import Critic, Generator, Trial, best_of, diagnosis_text, weights_text
from ace.also.summary import summarise
from ace.also.terms import TERMS, ShapedSampler, Terms, as_weights, random_configuration
from ace.config.streams import generator

PHASE = {"decisions": 0, "env_steps": 0, "scoring_steps": 0}


class LearningSignal:
    """Of one run. It replaces the learner's sampler of D_mix; the loop itself knows nothing of it.

    counts: points; branches, died of them; promoted; and, of a model, what `roles` counts. used: decisions, env_steps and
    scoring_steps of all branches. points: what became of each, for the manifest.
    """

    def __init__(self, learner, settings, seed, recorder=None):
        """learner: coevolve.CoEvolution, at its start; settings: config.settings.Settings; recorder: of a model, or None."""
        self.learner, self.settings, self.terms = learner, settings, Terms.of(learner)
        self.branches = Branches(learner, self.terms, settings.also.decisions)
        self.sampler = learner.d_mix = ShapedSampler(learner.d_mix, self.terms)
        self.rng = generator(seed, "signal")
        self.critic, self.generator = (Critic(recorder), Generator(recorder)) if recorder else (None, None)
        self.episodes, self.points, self.configuration = [], [], {}
        self._counts, self.used = Counter(), dict(PHASE)
        self.held, self.seen = {}, 0  # the guard: {uid in D_LLM: change of its step reward}; uids below `seen` were looked at

    @property
    def counts(self):
        of_roles = [role.counts for role in (self.critic, self.generator) if role]
        return sum(of_roles, Counter(self._counts))

    @property
    def steps(self):
        """Environment steps of all branches, scoring included."""
        return self.used["env_steps"] + self.used["scoring_steps"]

    def after_episode(self, row):
        """To be called after every training episode. row: of its Event."""
        self.episodes.append([int(row["steps"]), bool(row["blackout"])])
        if self.settings.also.source == "guard":
            self._hold_back()
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
        propose = self._proposer(point)
        found, trials = propose([]), []
        if not found:
            return
        if not self.settings.also.tested:
            self._promote(found[0], point)
            return
        state = self.learner.state_dict()
        control = self._branch(state, {}, point)
        if self.configuration:
            found = [self.configuration, *(each for each in found if each != self.configuration)]
        for number in range(self.settings.also.rounds):
            for configuration in filter(None, found):  # none at all is the control
                branch = self._branch(state, configuration, point)
                trials.append(Trial(configuration, gain(branch, control)))
            best = best_of(trials)
            if best and best.gain > self.settings.also.margin:
                self._promote(best.configuration, point)
                return
            found = propose(trials) if number + 1 < self.settings.also.rounds else []
        self._promote({}, point)

    def _proposer(self, point):
        """trials -> configurations, by the model or at random; {} is no shaping."""
        also, seed = self.settings.also, lambda: int(self.rng.integers(2**31))
        if also.source == "random":
            return lambda trials: [random_configuration(self.rng) for _ in range(also.candidates)]
        horizon = self.learner.world.spec.horizon
        summary = summarise(self.learner, self.terms, self.episodes, horizon)
        failure = self.critic.diagnose(summary, seed())
        if failure is None:
            return lambda trials: []
        point["diagnosis"] = diagnosis_text(failure, summary)
        return lambda trials: self.generator.propose(point["diagnosis"], trials, also.candidates, seed())

    def _branch(self, state, configuration, point, judgements=None):
        branch = self.branches.run(state, as_weights(configuration), judgements)
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

    # --- the guard ----------------------------------------------------------------------------------------------------

    def _hold_back(self):
        """What g_LLM has judged since the last episode stays in D_LLM as it was measured, until it has been tested."""
        d_llm, unit = self.learner.d_llm, 1 - self.settings.sac.gamma
        for uid in range(max(self.seen, d_llm.next_uid - d_llm.capacity), d_llm.next_uid):
            if not d_llm.value(uid, "is_refined"):
                delta = float(d_llm.value(uid, "r_refined") - d_llm.value(uid, "r_original"))
                d_llm.judge(uid, -delta, unit)
                self.held[uid] = delta
        self.seen = d_llm.next_uid

    def _judge(self, point):
        held = {uid: delta for uid, delta in self.held.items() if self.learner.d_llm.holds(uid)}
        self.held = {}
        if not held:
            return
        state = self.learner.state_dict()
        control = self._branch(state, {}, point, {})
        better = gain(self._branch(state, {}, point, held), control)
        if better is not None and better > self.settings.also.margin:
            for uid, delta in held.items():
                self.learner.d_llm.judge(uid, delta, 1 - self.settings.sac.gamma)
            self._counts["promoted"] += 1
            self._counts["judgements_promoted"] += len(held)
            point["promoted"] = {"judgements": len(held)}
        self._counts["judgements_tested"] += len(held)

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
            "held": [list(each) for each in self.held.items()], "seen": self.seen, "roles": roles,
        }  # fmt: skip

    def load_state_dict(self, saved):
        self.rng.bit_generator.state = saved["rng"]
        self.episodes, self.points = [list(each) for each in saved["episodes"]], list(saved["points"])
        self.configuration, self.used = dict(saved["configuration"]), dict(saved["used"])
        self._counts, self.seen = Counter(saved["counts"]), saved["seen"]
        self.held = dict(saved["held"])
        self.sampler.weights = as_weights(self.configuration)
        for name, counts in saved["roles"].items():
            getattr(self, name).counts = Counter(counts)
