"""The language model of one run: its client, the record of what it was asked, both roles, and its LoRA rounds."""

import hashlib
import json
import time

from ace.config import ConfigError
from ace.config.streams import number
from ace.llm.clients import LocalClient, Recorder, checkpoint_folder, open_client
from ace.llm.controls import RandomCritic
from ace.llm.finetune import lora_round
from ace.llm.models import embedded
from ace.llm.models.heldout import load_states, one_proposal
from ace.llm.models.pretrained import DIGESTS
from ace.llm.policy_actor import PolicyActor
from ace.llm.text import TextMap, template
from ace.llm.value_critic import ValueCritic


class LlmSession:
    """f_LLM (`actor`) and g_LLM (`critic`) on one client and one recorder.

    pretraining: what the corpus of a model that was made here has cost, from its manifest (empty for other models).
    model: digest of the model and of the prompts, as they were before any LoRA round.
    rate: one-proposal rate on the held-out states of the weights in use, None before the first LoRA round.
    finetune_s: seconds that the LoRA rounds took, without those of asking the model.
    """

    def __init__(self, settings, world, whatif, root, environment, seed, folder=None):
        """settings: config.settings.Settings; folder: gets the adapter of every LoRA round, or None.

        Raises ConfigError where there is no such model, transcript or server, or no held-out states for its LoRA rounds.
        """
        self.settings, self.seed, self.whatif, self.folder = settings, seed, whatif, folder
        self.client = open_client(settings.llm, environment, seed, root)
        self.model = fingerprint_of_model(settings.llm, environment, root)[:16]
        self.recorder = Recorder(self.client)
        self.textmap = TextMap(world)
        self.actor = PolicyActor(self.recorder, self.textmap, whatif, settings.refine)
        if settings.shape.judge == "llm":
            self.critic = ValueCritic(self.recorder, self.textmap, settings.shape)
        else:
            self.critic = RandomCritic(settings.shape)
        self.rounds, self.rate, self.heldout, self.finetune_s = 0, None, [], 0.0
        place = root / settings.llm.path.replace("{env}", environment)
        if settings.method == "sac" and settings.refine.enabled and settings.finetune.enabled:
            import peft  # noqa: F401 its seconds are none of the first round's

            if settings.finetune.heldout and self.can_be_tuned:
                states = _heldout_file(place, root, environment)
                self.heldout = load_states(states, settings.finetune.heldout)
        # What lies at `path` was made here of a corpus, unless a checkpoint is named: its folder then only lends the actions.
        ours = settings.llm.client == "embedded" or (settings.llm.client == "checkpoint" and not settings.llm.model)
        made = ours and (place / "model_manifest.json").is_file()
        self.pretraining = read_model_manifest(settings.llm, environment, root)["budget"] if made else {}

    @property
    def can_be_tuned(self):
        """A server's or a recorded model has no weights here: ACE then runs without LoRA, as the paper's GPT-4 arm does."""
        return isinstance(self.client, LocalClient)

    def finetune(self, samples):
        """One LoRA round on [(prompt, reply)] (paper, step 5). Returns what there is to log.

        A round that lowers the one-proposal rate on the held-out states is rolled back (our reading): the old weights
        stay. Rates are None where there are no such states.
        """
        started, asking = time.perf_counter(), self.recorder.seconds
        self.rounds, calls = self.rounds + 1, self.recorder.calls
        before, old = self._heldout_rate() if self.rate is None else self.rate, self.client.model
        folder = self.folder / "lora" / f"round={self.rounds}" if self.folder else None
        seed = number(self.seed, "lora", self.rounds)
        self.client.model = lora_round(old, self.client.tokenizer, samples, self.settings.finetune, seed, folder)
        after = self._heldout_rate()
        accepted = after is None or after >= before
        self.rate = after if accepted else before
        if not accepted:
            self.client.model = old
        self.finetune_s += time.perf_counter() - started - (self.recorder.seconds - asking)
        return {"round": self.rounds, "samples": len(samples), "distinct": len(set(samples)), "calls_before": calls,
                "rate_before": before, "rate_after": after, "accepted": accepted}  # fmt: skip

    def _heldout_rate(self):
        """One-proposal rate of the present weights, or None without held-out states. Its calls are in the record."""
        if not self.heldout:
            return None
        # The same seed each time, so that two rates differ by the weights and not by the draw.
        seed = number(self.seed, "heldout")
        hits = one_proposal(
            self.recorder, self.textmap, self.whatif, self.heldout, self.settings.refine, seed, role="heldout"
        )
        return sum(hits) / len(hits)

    def counts(self):
        """What became of the proposals and of the adjustments."""
        return {"actor": dict(sorted(self.actor.counts.items())), "critic": dict(sorted(self.critic.counts.items()))}

    def state_dict(self):
        weights = self.client.model.state_dict() if self.rounds else None
        return {
            "recorder": self.recorder.state_dict(), "actor": self.actor.state_dict(), "critic": self.critic.state_dict(),
            "rounds": self.rounds, "rate": self.rate, "finetune_s": self.finetune_s, "weights": weights,
        }  # fmt: skip

    def load_state_dict(self, state):
        self.recorder.load_state_dict(state["recorder"])
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.rounds, self.rate, self.finetune_s = state["rounds"], state["rate"], state["finetune_s"]
        if self.rounds:
            self.client.model.load_state_dict(state["weights"])


def _heldout_file(place, root, environment):
    """Those that were made with this model; a checkpoint of another kind has none, and takes the embedded model's."""
    own, shared = place / "heldout.npz", root / embedded.TRAINED.format(env=environment) / "heldout.npz"
    return own if own.is_file() else shared


def fingerprint_of_model(settings, environment, root):
    """Of the prompts and of the model's files: a folder, a transcript, or nothing here. settings: config.settings.Llm"""
    path = settings.path.replace("{env}", environment)
    places = [root / path]
    if settings.client == "checkpoint" and settings.model:
        places.append(checkpoint_folder(settings, path, root))
    sha = hashlib.sha256("".join(map(template, ("actor", "critic", "diagnosis", "configuration"))).encode())
    for file in (file for place in places for file in _files_of(place)):
        sha.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
    return sha.hexdigest()


def _files_of(place):
    """What identifies a model: its files, or where their digests lie with them, as with the pretrained one, these alone."""
    if place.is_dir():
        return [place / DIGESTS] if (place / DIGESTS).is_file() else sorted(place.iterdir())
    return [place] if place.is_file() else []


def read_model_manifest(settings, environment, root):
    """What the stage language_model says of its corpus and model, or ConfigError. settings: config.settings.Llm."""
    path = root / settings.path.replace("{env}", environment) / "model_manifest.json"
    if not path.is_file():
        raise ConfigError(f"no model_manifest.json at {path.parent.relative_to(root)}: the stage language_model makes it")
    return json.loads(path.read_text())
