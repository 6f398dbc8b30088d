"""The co-evolution loop, the paper's algorithm. Its steps, numbered as in the comments below:

    1. SAC acts in the environment; transitions go to D_RL             `_episode`, `_store`
    2. f_LLM refines bad cases; what is validated goes to D_LLM        `_refine`, `_keep`
    3. g_LLM adjusts the rewards of an episode's key decisions         `_shape`
    4. SAC learns from D_mix                                           `_learn`
    5. the language model is LoRA-tuned on validated refinements       `_finetune`

`CoEvolution.run()` is a generator; progress, logging, checkpoints and plots are its consumers. Each mechanism is a switch:
without an actor, a critic and a tuner this is plain SAC, and nothing else differs.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields

import numpy as np

from ace.episodes import decisions
from ace.grid.environment import GridState
from ace.llm.policy_actor import BadCase
from ace.rl.buffers import MixedSampler, RefinedBuffer, ReplayBuffer, Transition
from ace.rl.sac import DistillationBatch

STREAMS = ("scenarios", "batches", "actor", "critic", "teacher")
UPDATE_INFO = ("loss_critic", "loss_policy", "entropy", "alpha", "q_mean", "q_std")


@dataclass(slots=True)
class Event:
    """kind: 'episode', 'validation' or 'finetune'; row: what there is to say about it."""

    kind: str
    row: dict = field(default_factory=dict)


class CoEvolution:
    """One training run.

    world: the environment; sac: the learner; settings: config.settings.Settings; seed: of this run
    validate: () -> (survival, mean reward) of the present policy on the validation scenarios
    actor: llm.policy_actor.PolicyActor (f_LLM), an llm.controls.ControlActor in its place, or None
    critic: llm.value_critic.ValueCritic (g_LLM), an llm.controls.RandomCritic in its place, or None
    tuner: one LoRA round on [(prompt, reply)], `LlmSession.finetune`: (samples) -> what there is to log; or None
    teacher: (states, seed) -> [action id or None], unvalidated proposals (LLM4Teach), or None
    """

    def __init__(self, world, sac, settings, seed, validate, actor=None, critic=None, tuner=None, teacher=None):
        self.world, self.sac, self.settings, self.validate = world, sac, settings, validate
        self.actor, self.critic, self.tuner, self.teacher = actor, critic, tuner, teacher
        # A stream for each purpose: switching a role off leaves the draws of all others as they were.
        self.rng = {name: np.random.default_rng([seed, i]) for i, name in enumerate(STREAMS)}
        sizes = (world.features.n, world.catalogue.n_legal)
        self.d_rl = ReplayBuffer(settings.buffers.capacity_rl, *sizes)
        self.d_llm = RefinedBuffer(settings.buffers.capacity_llm, *sizes)
        self.d_mix = MixedSampler(self.d_rl, self.d_llm, settings.buffers.beta, settings.buffers.tau)
        self.bad_states = {}  # uid in D_RL -> GridState, kept for decisions that f_LLM may be asked about
        self.unasked, self.proposals = [], []  # this episode's states since the teacher was asked; its (x, legal, id)
        self.answers = {}  # uid in D_LLM -> (prompt, reply) that f_LLM was right with
        self.count = Counter(decisions=0, episodes=0, env_steps=0, updates=0, refine_tried=0, refined=0, shaped=0,
                             finetune_rounds=0, validations=0)  # fmt: skip
        self.owed_updates = 0.0
        self.best, self.best_policy = None, None
        self.recent = defaultdict(list)

    def run(self):
        """Yields an Event after every episode, validation and LoRA round, until the decisions are used up."""
        while True:
            # What is due follows from the counts alone, so that a run resumed just here does it, and only once.
            if self.count["validations"] < self._validations_due():
                yield Event("validation", self._validation())
            elif self.count["decisions"] >= self.settings.train.decisions:
                return
            else:
                yield from self._episode()

    def _validations_due(self):
        """One for every `validate_every` decisions, and one at the very end; one serves all boundaries of an episode."""
        decisions, train = self.count["decisions"], self.settings.train
        at_the_end = -(-train.decisions // train.validate_every) if decisions >= train.decisions else 0
        return max(decisions // train.validate_every, at_the_end)

    def _episode(self):
        world, s = self.world, self.settings
        steps_before = world.env_steps
        scenarios = max(round(s.train.share * len(world.sets["train"])), 1)
        start = world.reset("train", int(self.rng["scenarios"].integers(scenarios)))
        episode, self.unasked = [], []
        # An episode is always played to its end, so that a run can stop and go on at any boundary between episodes.
        for decision in decisions(world, start, lambda decision: self.sac.act(*decision.observation, greedy=False)):
            # 1. SAC has acted: the transition goes to D_RL.
            uid = self._store(decision)
            if self.critic:
                episode.append((uid, decision))  # it has all that g_LLM is shown, see llm.text.Decision
            self.count["decisions"] += 1
            self.recent["acted"].append(decision.action != 0)
            # 4. SAC learns from D_mix.
            self._learn()
            # 2. f_LLM refines bad cases, and 5. is tuned on what it was right with.
            if self.actor and self.count["decisions"] % s.refine.every == 0:
                yield from self._refine()
            if self.teacher:
                self.unasked.append((decision.state, *decision.observation))
                if self.count["decisions"] % s.refine.every == 0:
                    self._ask_teacher()
        self.count["episodes"] += 1
        self.count["env_steps"] += world.env_steps - steps_before
        # 3. g_LLM reads whole episodes, in the later stage of training.
        late = self.count["decisions"] >= s.shape.start * s.train.decisions
        if self.critic and late and self.count["episodes"] % s.shape.every == 0:
            self._shape(episode)
        yield Event("episode", {"steps": world.t, "blackout": world.blackout})

    def _store(self, decision):
        """Put a decision, and the quiet steps that follow it as one do-nothing transition, into D_RL; the decision's uid."""
        (x, legal), step, action = decision.observation, decision.step, decision.action
        x_next, legal_next = self.world.observe(step.state)
        reward, discount = self._return(step.rewards, step.blackout)
        uid = self.d_rl.add(Transition(x, legal, action, reward, discount, x_next, legal_next, step.rewards[0], True))
        if step.rewards[0] < self.settings.refine.threshold and self.actor:
            self.bad_states[uid] = (decision.state, action)
        if len(step.rewards) > 1:
            # The state one step after a decision is where a simulated refinement ends: its value must be learnt too.
            x_first, legal_first = self.world.observe(step.first)
            reward, discount = self._return(step.rewards[1:], step.blackout)
            quiet = Transition(x_first, legal_first, 0, reward, discount, x_next, legal_next, step.rewards[1], False)
            self.d_rl.add(quiet)
        return uid

    def _return(self, rewards, blackout):
        """(R, discount) of a semi-Markov transition: R = (1 - gamma) sum_i gamma^i r_i, so that values stay in [-1, 1].

        A blackout is an absorbing state with reward -1: it adds -gamma^n, what remains of the sum, and ends the return.
        """
        gamma, n = self.settings.sac.gamma, len(rewards)
        if self.settings.train.reward == "sparse":
            rewards = [0.0] * (n - 1) + [-1.0 if blackout else 0.0]
        value = (1 - gamma) * float(np.dot(gamma ** np.arange(n), rewards))
        return (value - gamma**n, 0.0) if blackout else (value, gamma**n)

    def _learn(self):
        """Step 4, so many gradient steps for each decision; the losses are `rl.sac`'s."""
        train = self.settings.train
        if self.count["decisions"] <= train.warmup:
            return
        self.owed_updates += train.updates_per_decision
        while self.owed_updates >= 1:
            batch = self.d_mix.sample(train.batch_size, self.rng["batches"])
            info = self.sac.update(batch, self._distillation_batch())
            self.owed_updates -= 1
            self.count["updates"] += 1
            for name in UPDATE_INFO:
                self.recent[name].append(info[name])

    def _refine(self):
        """Step 2: of a mini-batch of D_RL the bad cases (r < r̄) go to f_LLM; validated improvements enter D_LLM (Eq. 4)."""
        cases = self._bad_cases()
        if not cases:
            return
        self.count["refine_tried"] += len(cases)
        rounds_before = self.count["refined"] // self.settings.finetune.every
        refinements = self.actor.refine(cases, seed=int(self.rng["actor"].integers(2**31)))
        for case, found in zip(cases, refinements, strict=True):
            if found is not None and found.improved:
                self._keep(case, found)
        if self.settings.sac.prior_llm:
            self.sac.update_prior(self.d_llm.columns["action"][: len(self.d_llm)])
        if self.tuner and self.count["refined"] // self.settings.finetune.every > rounds_before:
            yield self._finetune()

    def _bad_cases(self):
        refine = self.settings.refine
        room = refine.limit - self.count["refined"]
        if room <= 0:
            return []
        uids = self.d_rl.bad_cases(self.rng["actor"], refine.minibatch, refine.threshold)
        cases = []
        for uid in map(int, uids[: min(refine.max_cases, room)]):
            state, action = self.bad_states.pop(uid)
            self.d_rl.mark_refined(uid)
            cases.append(BadCase(uid, state, action, float(self.d_rl.value(uid, "r_step"))))
        self.bad_states = {uid: kept for uid, kept in self.bad_states.items() if self.d_rl.holds(uid)}
        return cases

    def _keep(self, case, found):
        """The validated refinement as a transition of D_LLM; f_LLM's answer is kept for the fine-tuning."""
        x, legal = self.world.observe(case.state)
        x_next, legal_next = self.world.observe(found.next_state)
        reward, discount = self._return([found.reward], found.done)
        refined = Transition(x, legal, found.action, reward, discount, x_next, legal_next, found.reward, True)
        uid = self.d_llm.add(refined, r_original=found.r_original, r_refined=found.reward)
        self.answers[uid] = (found.prompt, found.reply)
        self.count["refined"] += 1
        self.recent["gain"].append(found.reward - found.r_original)

    def _finetune(self):
        """Step 5: one LoRA round on answers drawn from D_LLM, those of high gain more often (Eq. 8)."""
        finetune, tau = self.settings.finetune, self.settings.buffers.tau
        drawn = self.d_llm.uids(self.d_llm.sample(finetune.samples, self.rng["actor"], tau))
        self.answers = {uid: answer for uid, answer in self.answers.items() if self.d_llm.holds(uid)}
        info = self.tuner([self.answers[int(uid)] for uid in drawn])
        self.count["finetune_rounds"] += 1
        return Event("finetune", {"round": self.count["finetune_rounds"], **info})

    def _ask_teacher(self):
        """LLM4Teach: one unvalidated proposal for some of the latest states, as many as f_LLM would be asked about."""
        n = min(self.settings.refine.max_cases, len(self.unasked))
        chosen = [self.unasked[i] for i in self.rng["teacher"].choice(len(self.unasked), n, replace=False)]
        proposals = self.teacher([state for state, _, _ in chosen], int(self.rng["teacher"].integers(2**31)))
        self.proposals += [(x, legal, a) for (_, x, legal), a in zip(chosen, proposals, strict=True) if a is not None]
        self.unasked = []

    def _distillation_batch(self):
        """LLM4Teach: the proposals that one update imitates, with a weight that falls to 0; None without a teacher."""
        train = self.settings.train
        if not self.proposals:
            return None
        drawn = self.rng["teacher"].integers(len(self.proposals), size=train.batch_size // 2)
        x, legal, action = (np.array(column) for column in zip(*(self.proposals[i] for i in drawn), strict=True))
        left = max(1 - self.count["decisions"] / train.decisions, 0)
        return DistillationBatch(x, legal, action, self.settings.teach.weight * left)

    def _shape(self, episode):
        """Step 3, g_LLM: read an episode and adjust the rewards of its key decisions in D_RL. episode: [(uid, Decision)]."""
        seed = int(self.rng["critic"].integers(2**31))
        for position, delta in self.critic.shape([decision for _, decision in episode], seed).items():
            # K is in units of a step's reward; the stored return is normalised by 1 - gamma.
            change = (1 - self.settings.sac.gamma) * delta
            self.count["shaped"] += self.d_rl.adjust(episode[position][0], change)

    def _validation(self):
        survival, reward_mean = self.validate()
        self.count["validations"] = self._validations_due()
        if self.best is None or (survival, reward_mean) > tuple(self.best):
            self.best = [survival, reward_mean]
            self.best_policy = {k: v.copy() for k, v in self.sac.deployed.weights.items()}
        means = {name: float(np.mean(values)) if values else float("nan") for name, values in (
            (name, self.recent[name]) for name in (*UPDATE_INFO, "acted", "gain"))}  # fmt: skip
        self.recent.clear()
        return {**self.count, "survival": survival, "reward_mean": reward_mean, **means}

    def state_dict(self):
        """Everything a run needs to go on with the same bytes: arrays, numbers, strings, lists and dicts of them."""
        uids = list(self.bad_states)
        states = [self.bad_states[uid][0] for uid in uids]
        return {
            "rng": {name: rng.bit_generator.state for name, rng in self.rng.items()},
            "sac": self.sac.state_dict(),
            "d_rl": self.d_rl.state_dict(),
            "d_llm": self.d_llm.state_dict(),
            "bad_uids": uids,
            "bad_actions": [self.bad_states[uid][1] for uid in uids],
            "bad_states": {f.name: np.stack([np.asarray(getattr(s, f.name)) for s in states]) for f in fields(GridState)}
            if states else {},
            "proposals": [list(proposal) for proposal in self.proposals],
            "answers": [[uid, *answer] for uid, answer in self.answers.items()],
            "count": dict(self.count),
            "owed_updates": self.owed_updates,
            "best": self.best,
            "best_policy": self.best_policy,
            "recent": {name: [float(v) for v in values] for name, values in self.recent.items()},
        }  # fmt: skip

    def load_state_dict(self, saved):
        for name, rng in self.rng.items():
            rng.bit_generator.state = saved["rng"][name]
        self.sac.load_state_dict(saved["sac"])
        self.d_rl.load_state_dict(saved["d_rl"])
        self.d_llm.load_state_dict(saved["d_llm"])
        self.bad_states = {}
        for i, (uid, action) in enumerate(zip(saved["bad_uids"], saved["bad_actions"], strict=True)):
            columns = {name: values[i] for name, values in saved["bad_states"].items()}
            columns["scenario"], columns["t"] = int(columns["scenario"]), int(columns["t"])
            self.bad_states[uid] = (GridState(**columns), action)
        self.proposals = [tuple(proposal) for proposal in saved["proposals"]]
        self.answers = {uid: (prompt, reply) for uid, prompt, reply in saved["answers"]}
        self.count = Counter(saved["count"])
        self.owed_updates = saved["owed_updates"]
        self.best, self.best_policy = saved["best"], saved["best_policy"]
        self.recent = defaultdict(list, {name: list(values) for name, values in saved["recent"].items()})
