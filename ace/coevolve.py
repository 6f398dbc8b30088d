"""The co-evolution loop, the paper's algorithm. Its steps, numbered as in the comments below:

    1. SAC acts in the environment; transitions go to D_RL             `episode`, `_store`
    2. f_LLM refines bad cases; what is validated goes to D_LLM        `_refine`, `_keep`
    3. g_LLM adds key decisions with adjusted rewards to D_LLM         `_shape`
    4. SAC learns from D_mix                                           `_learn`
    5. LoRA round on validated answers and lessons of the policy       `_finetune`

`CoEvolution.run()` is a generator; progress, logging, checkpoints and plots are its consumers. Each mechanism is a switch:
without an actor, a critic and a tuner this is plain SAC, and nothing else differs.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from ace.config.streams import generator
from ace.episodes import decisions
from ace.grid.environment import GridState
from ace.llm.policy_actor import BadCase
from ace.rl.buffers import MixedSampler, RefinedBuffer, ReplayBuffer, Transition, draw, priorities
from ace.rl.llm4teach import Distillation

STREAMS = ("scenarios", "batches", "cases", "actor", "critic", "teacher", "lessons", "samples")
UPDATE_INFO = ("loss_critic", "loss_policy", "entropy", "alpha", "q_mean", "q_std")


@dataclass(slots=True)
class Event:
    """kind: 'episode', 'validation', 'finetune' or 'mark'; row: what there is to say about it."""

    kind: str
    row: dict = field(default_factory=dict)


class CoEvolution:
    """One training run.

    world: the environment; sac: the learner; settings: config.settings.Settings; seed: of this run
    validate: () -> (survival, mean reward) of the present policy on the validation scenarios
    actor: llm.policy_actor.PolicyActor (f_LLM), an llm.controls.ControlActor in its place, or None
    critic: llm.value_critic.ValueCritic (g_LLM), an llm.controls.RandomCritic in its place, or None
    tuner: one LoRA round on [(prompt, reply)], `LlmSession.finetune`: (samples) -> what there is to log; or None
    lessons: llm.lessons.Lessons, through which RL teaches the model, or None: it is tuned on its own answers alone
    teacher: (states, seed) -> [action id or None], unvalidated proposals (LLM4Teach), or None
    mask: rl.mask.MaskedExploration, which chooses the actions of training (CAMEL), or None: SAC samples them
    """

    def __init__(self, world, sac, settings, seed, validate, actor=None, critic=None, tuner=None, lessons=None,
                 teacher=None, mask=None):  # fmt: skip
        self.world, self.sac, self.settings, self.validate = world, sac, settings, validate
        self.actor, self.critic, self.tuner, self.lessons, self.mask = actor, critic, tuner, lessons, mask
        self.choose = mask.choose if mask else lambda decision: sac.act(*decision.observation, greedy=False)
        # A stream for each purpose: switching a role off leaves the draws of all others as they were.
        self.rng = {name: generator(seed, name) for name in STREAMS}
        sizes = (world.features.n, world.catalogue.n_legal)
        self.d_rl = ReplayBuffer(settings.buffers.capacity_rl, *sizes)
        self.d_llm = RefinedBuffer(settings.buffers.capacity_llm, *sizes)
        self.keep_judged = self.d_llm.add  # or whoever holds g_LLM's rows back
        self.d_mix = MixedSampler(self.d_rl, self.d_llm, settings.buffers.beta, settings.buffers.tau)
        self.bad_states = {}  # uid in D_RL -> GridState, kept for decisions that f_LLM may be asked about
        self.teaching = Distillation(teacher, settings, self.rng["teacher"]) if teacher else None
        self.answers = {}  # uid in D_LLM -> (prompt, reply) that f_LLM was right with
        self.forecast_gap = [0.0, 0]  # sum and number of |reward, simulated - played| of the actions that f_LLM was asked about
        self.count = Counter(decisions=0, episodes=0, env_steps=0, updates=0, refine_tried=0, refined=0, shaped=0,
                             finetune_rounds=0, validations=0)  # fmt: skip
        self.owed_updates = 0.0
        self.best, self.best_policy = None, None
        self.recent = defaultdict(list)

    def run(self):
        """Yields an Event after every episode, validation and LoRA round and at every mark, until the decisions are used up."""
        while True:
            # What is due follows from the counts alone, so that a run resumed just here does it, and only once.
            if self.count["validations"] < self._validations_due():
                yield Event("validation", self._validation())
            elif self.count["decisions"] >= self.settings.train.decisions:
                return
            else:
                yield from self.episode()

    def _validations_due(self):
        """One for every `validate_every` decisions, and one at the very end; one serves all boundaries of an episode."""
        decisions, train = self.count["decisions"], self.settings.train
        at_the_end = -(-train.decisions // train.validate_every) if decisions >= train.decisions else 0
        return max(decisions // train.validate_every, at_the_end)

    def episode(self):
        world, s = self.world, self.settings
        steps_before = world.env_steps
        scenarios = max(round(s.train.share * len(world.sets["train"])), 1)
        start = world.reset("train", int(self.rng["scenarios"].integers(scenarios)))
        episode = []
        if self.teaching:
            self.teaching.unasked = []
        # An episode is always played to its end, so that a run can stop and go on at any boundary between episodes.
        for decision in decisions(world, start, self.choose):
            uid = self._store(decision)  # 1. SAC has acted: the transition goes to D_RL.
            if self.critic:
                episode.append((uid, decision))  # it has all that g_LLM is shown, see llm.text.Decision
            self.count["decisions"] += 1
            self.recent["acted"].append(decision.action != 0)
            self._learn()  # 4. SAC learns from D_mix.
            # 2. f_LLM refines bad cases, and 5. is tuned on what it was right with.
            if self.actor and self.count["decisions"] % s.refine.every == 0:
                yield from self._refine()
            if self.teaching:
                self.teaching.unasked.append(decision)
                if self.count["decisions"] % s.refine.every == 0:
                    self.teaching.ask()
            if self.count["decisions"] in s.train.marks:
                steps = self.count["env_steps"] + world.env_steps - steps_before
                yield Event("mark", {"decisions": self.count["decisions"], "env_steps": steps, "weights": self._weights()})
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
        if self.lessons:
            self.lessons.keep(decision.state, action)
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
            info = self.sac.update(batch, self.teaching.batch(self.count["decisions"]) if self.teaching else None)
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
            if found is None:
                continue
            gap = abs(found.r_original - case.reward)
            self.recent["forecast_gap"].append(gap)
            self.forecast_gap = [self.forecast_gap[0] + float(gap), self.forecast_gap[1] + 1]
            if found.improved:
                self._keep(case, found)
        if self.tuner and self.count["refined"] // self.settings.finetune.every > rounds_before:
            yield self._finetune()

    def _bad_cases(self):
        """Of a mini-batch's bad cases as many as may be refined, at random."""
        refine = self.settings.refine
        room = refine.limit - self.count["refined"]
        if room <= 0:
            self.bad_states.clear()
            return []
        uids = self.d_rl.bad_cases(self.rng["cases"], refine.minibatch, refine.threshold)
        if refine.draw == "oldest":
            uids = np.sort(uids)
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
        """Step 5: one LoRA round on samples drawn by Eq. 8 from f_LLM's answers in D_LLM and from lessons of the policy."""
        self.answers = {uid: answer for uid, answer in self.answers.items() if self.d_llm.holds(uid)}
        gains = [self.d_llm.value(uid, "r_refined") - self.d_llm.value(uid, "r_original") for uid in self.answers]
        lessons = self.lessons.draw(self.rng["lessons"]) if self.lessons else []
        pool = list(self.answers.values()) + [(lesson.prompt, lesson.reply) for lesson in lessons]
        p = priorities(gains + [lesson.gain for lesson in lessons], self.settings.buffers.tau)
        drawn = draw(p, self.settings.finetune.samples, self.rng["samples"])
        info = self.tuner([pool[i] for i in drawn])
        self.count["finetune_rounds"] += 1
        from_policy = {"lessons": len(lessons), "of_lessons": int((drawn >= len(self.answers)).sum())}
        return Event("finetune", {"round": self.count["finetune_rounds"], **info, **from_policy})

    def _shape(self, episode):
        """Step 3, g_LLM: read an episode, [(uid, Decision)], and adjust the rewards of its key decisions.

        shape.into d_llm: the adjusted decisions enter D_LLM and are drawn by Eq. 8 beside f_LLM's (a close reader's summary
        of the paper); D_RL stays as measured, and cloning leaves them out. d_rl: their rows in D_RL change.
        """
        seed = int(self.rng["critic"].integers(2**31))
        for position, delta in self.critic.shape([decision for _, decision in episode], seed).items():
            # K is in units of a step's reward; the stored return is normalised by 1 - gamma.
            change = (1 - self.settings.sac.gamma) * delta
            uid = episode[position][0]
            if self.settings.shape.into == "d_rl":
                self.count["shaped"] += self.d_rl.adjust(uid, change)
            elif self.d_rl.holds(uid):
                judged = self.d_rl.transition(uid)
                judged.reward += change
                self.keep_judged(judged, judged.r_step, judged.r_step + delta, is_refined=False)
                self.count["shaped"] += 1

    @property
    def policy(self):
        """What is validated and kept: the learner's deployed policy; its first one as long as it has learnt nothing."""
        return self.sac.deployed if self.sac.updates else self.sac.acting

    def _weights(self):
        return {name: weights.copy() for name, weights in self.policy.weights.items()}

    def _validation(self):
        survival, reward_mean = self.validate()
        self.count["validations"] = self._validations_due()
        if self.best is None or (survival, reward_mean) > tuple(self.best):
            self.best = [survival, reward_mean]
            self.best_policy = self._weights()
        means = {name: float(np.mean(values)) if values else float("nan") for name, values in (
            (name, self.recent[name]) for name in (*UPDATE_INFO, "acted", "gain", "forecast_gap"))}  # fmt: skip
        self.recent.clear()
        return {**self.count, "survival": survival, "reward_mean": reward_mean, **means}

    def state_dict(self):
        """Everything a run needs to go on with the same bytes: arrays, numbers, strings, lists and dicts of them."""
        return {
            "rng": {name: rng.bit_generator.state for name, rng in self.rng.items()},
            "sac": self.sac.state_dict(),
            "d_rl": self.d_rl.state_dict(),
            "d_llm": self.d_llm.state_dict(),
            "bad_uids": list(self.bad_states),
            "bad_actions": [action for _, action in self.bad_states.values()],
            "bad_states": GridState.stack([state for state, _ in self.bad_states.values()]),
            "teaching": self.teaching.state_dict() if self.teaching else {},
            "answers": [[uid, *answer] for uid, answer in self.answers.items()],
            "forecast_gap": self.forecast_gap,
            "count": dict(self.count),
            "owed_updates": self.owed_updates,
            "best": self.best,
            "best_policy": self.best_policy,
            "recent": {name: [float(v) for v in values] for name, values in self.recent.items()},
        }

    def load_state_dict(self, saved):
        for name, rng in self.rng.items():
            rng.bit_generator.state = saved["rng"][name]
        self.sac.load_state_dict(saved["sac"])
        self.d_rl.load_state_dict(saved["d_rl"])
        self.d_llm.load_state_dict(saved["d_llm"])
        kept = zip(GridState.unstack(saved["bad_states"]), saved["bad_actions"], strict=True)
        self.bad_states = dict(zip(saved["bad_uids"], kept, strict=True))
        if self.teaching:
            self.teaching.load_state_dict(saved["teaching"])
        self.answers = {uid: (prompt, reply) for uid, prompt, reply in saved["answers"]}
        self.forecast_gap = saved["forecast_gap"]
        self.count = Counter(saved["count"])
        self.owed_updates = saved["owed_updates"]
        self.best, self.best_policy = saved["best"], saved["best_policy"]
        self.recent = defaultdict(list, {name: list(values) for name, values in saved["recent"].items()})
