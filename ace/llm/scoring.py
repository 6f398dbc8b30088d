"""Answers by score: of all answers that may be given, the one with the highest log-probability per token.

Beside free decoding: a model that is asked "how probable is each legal action?" can't get lost in its own text. Normalised by
length, or an action with few elements would win by having few tokens (Tan et al. 2024, TWOSOME).
"""

import numpy as np

from ace.llm.clients import Client, LocalClient
from ace.llm.constrained_decoding import Verdict
from ace.llm.models import embedded
from ace.llm.text import MULTIPLES, adjustment

AT_ONCE = 64
"""Answers scored at once."""


class ScoringClient(Client):
    """Wraps a LocalClient with `decoding.Decoder`. f_LLM's reply is the action line alone, g_LLM's its adjustment.

    actions: ids of the set that f_LLM's answers are taken from. Where none of them is legal and untried, or where there is no
    guide, the wrapped client answers.
    """

    def __init__(self, client, actions):
        super().__init__(client.settings, f"{client.name}-scored")
        if not isinstance(client, LocalClient) or client.decoder is None:
            raise TypeError("only a local model with a Decoder gives the probabilities of answers")
        self.inner, self.actions = client, [int(a) for a in actions]

    def _complete(self, prompts, seed, guides):
        replies = [None] * len(prompts)
        for i, (prompt, guide) in enumerate(zip(prompts, guides or [None] * len(prompts), strict=True)):
            answers = self._answers(guide)
            if answers:
                replies[i] = answers[int(np.argmax(self.score(prompt, answers)))]
        rest = [i for i, reply in enumerate(replies) if reply is None]
        written = self.inner.complete([prompts[i] for i in rest], seed, [guides[i] for i in rest] if guides else None)
        for i, reply in zip(rest, written, strict=True):
            replies[i] = reply
        self.tokens, self.inner.tokens = self.tokens + self.inner.tokens, 0
        return replies

    def score(self, prompt, answers):
        """Mean log-probability of each answer's tokens, its end among them, after a prompt: (n,), nats per token."""
        tokenizer = self.inner.tokenizer
        (text,) = embedded.chat([prompt], tokenizer)
        encoded = [[*each, tokenizer.eos_token_id] for each in tokenizer(answers, add_special_tokens=False)["input_ids"]]
        found, order = np.zeros(len(answers)), sorted(range(len(answers)), key=lambda i: len(encoded[i]))
        for i in range(0, len(order), AT_ONCE):
            part = order[i : i + AT_ONCE]
            found[part] = self.inner.decoder.mean_log_probability(self.inner.model, text, [encoded[j] for j in part])
        self.tokens += len(tokenizer(text, add_special_tokens=False)["input_ids"]) + sum(map(len, encoded))
        return found

    def _answers(self, guide):
        """All answers that a guide lets through, of the set of actions or of the four adjustments."""
        if guide is None:
            return []
        if isinstance(guide, Verdict):
            return [f"adjustments :\n{adjustment(guide.number, multiple)}" for multiple in MULTIPLES]
        untried = [a for a in self.actions if a not in set(guide.forbidden.tolist())]
        legal = [a for a in untried if guide.catalogue.is_legal(guide.legal, a)]
        elsewhere = [a for a in legal if not guide.avoided or int(guide.catalogue.sub[a]) not in guide.avoided]
        return [f"action : {guide.textmap.action(a)}" for a in elsewhere or legal]
