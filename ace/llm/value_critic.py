"""g_LLM, the Value Critic: which decisions of an episode are key decisions, and how their rewards are adjusted.

    {delta r_k} = g_LLM(T_tau(tau), T_k(s_k, a_k)) in {-2K, -K, +K, +2K},    k: abs(r_k) > r̿

T_tau and T_k are in `text.py`. Like f_LLM it only sees text and returns checked values: what can't be parsed changes nothing
and is counted. The loop writes the adjustments into D_LLM as further rows (`CoEvolution._shape`; `shape.into: d_rl`: into D_RL).
"""

from collections import Counter

import numpy as np

from ace.llm.constrained_decoding import Verdict
from ace.llm.policy_actor import as_recorder
from ace.llm.text import ParseFailure

BEFORE, AFTER = 2, 3
"""Decisions before and after the key decision in a prompt of g_LLM."""


def scores(episode, select):
    """How much each decision of an episode matters, in [0, 1] as r̿ is: (n,).

    episode: list of text.Decision, all of them in their order; select: "reward", "state" or "action" (config.settings.Shape).
    """
    if select == "reward":
        return np.array([abs(d.reward) for d in episode])
    if select == "state":
        return np.array([min(max(d.state.rho_max - 1, 0.0), 1.0) for d in episode])
    times = Counter(d.action for d in episode)
    return np.array([1 - times[d.action] / len(episode) for d in episode])


def key_decisions(episode, select, threshold):
    """Positions of the key decisions: those whose score is above the threshold r̿."""
    return np.flatnonzero(scores(episode, select) > threshold).tolist()


def around(episode, position, before=BEFORE):
    """The stretch of an episode that g_LLM is shown for the decision at `position`, and its number there, from 1."""
    first = max(0, position - before)
    return episode[first : position + AFTER + 1], position - first + 1


class ValueCritic:
    """g_LLM: reads an episode around each key decision and adjusts its reward by -2K, -K, +K or +2K.

    counts: prompts, unparsable, adjusted: of all calls so far.
    """

    def __init__(self, client, textmap, settings):
        """client: any client or a Recorder; settings: config.settings.Shape."""
        self.recorder = as_recorder(client)
        self.textmap, self.settings, self.counts = textmap, settings, Counter()

    def keys(self, episode):
        """Positions of an episode's key decisions. It takes the whole episode: an action's rarity is known at its end."""
        return key_decisions(episode, self.settings.select, self.settings.threshold)

    def shape(self, episode, seed):
        """Adjustments of one episode. episode: list of text.Decision, all of them in their order.

        Returns {position in the episode: adjustment in reward units}; decisions without one are missing.
        """
        keys = self.keys(episode)
        judged = zip(keys, self.judge([(episode, position) for position in keys], seed), strict=True)
        return {position: multiple * self.settings.K for position, multiple in judged if multiple}

    def judge(self, places, seed):
        """Ask about decisions, one prompt for each, all in one batch. places: list of (episode, position).

        Returns for each the multiple of K, or None where the reply could not be read.
        """
        asked = [around(*place) for place in places]
        prompts = [self.textmap.critic_prompt(part, number, self.settings.describe) for part, number in asked]
        multiples = []
        records = self.recorder.ask("critic", prompts, seed, [Verdict(number) for _, number in asked])
        for (_, number), record in zip(asked, records, strict=True):
            self.counts["prompts"] += 1
            parsed = self.textmap.parse_critic(record["reply"], {number})
            if isinstance(parsed, ParseFailure):
                self.counts["unparsable"] += 1
                record["parse"], record["verdict"] = parsed.reason, "unparsable"
                multiples.append(None)
                continue
            record["parse"], record["verdict"] = f"{parsed.value[number]:+d} K", "adjusted"
            self.counts["adjusted"] += 1
            multiples.append(parsed.value[number])
        return multiples

    def state_dict(self):
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state["counts"])
