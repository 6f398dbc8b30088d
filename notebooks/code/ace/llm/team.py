import hashlib
import json
from ace.config import ConfigError
from ace.llm.clients import LocalClient, Recorder, open_client
from ace.llm.critic import RandomCritic, ValueCritic
from ace.llm.embedded import lora_round
from ace.llm.heldout import load_states, one_proposal
from ace.llm.roles import PolicyActor
from ace.llm.text import TextMap, template

class Team:

    def __init__(self, settings, world, whatif, root, environment, seed, folder=None):
        self.settings, self.seed, self.whatif, self.folder = (settings, seed, whatif, folder)
        self.client = open_client(settings.llm, environment, seed, root)
        self.recorder = Recorder(self.client)
        self.textmap = TextMap(world)
        self.actor = PolicyActor(self.recorder, self.textmap, whatif, settings.refine)
        judges = settings.shape.judge == 'llm'
        self.critic = ValueCritic(self.recorder, self.textmap, settings.shape) if judges else RandomCritic(settings.shape)
        self.rounds, self.rate, self.heldout = (0, None, [])
        tuned = settings.method == 'sac' and settings.refine.enabled and settings.finetune.enabled
        if tuned:
            import peft
        folder = root / settings.llm.path.replace('{env}', environment)
        if tuned and settings.finetune.heldout and self.can_be_tuned:
            own, shared = (place / 'heldout.npz' for place in (folder, root / 'results' / 'language_model' / environment))
            self.heldout = load_states(own if own.is_file() else shared, settings.finetune.heldout)
        embedded = settings.llm.client == 'embedded' and (folder / 'card.json').is_file()
        self.pretraining = read_card(settings.llm, environment, root)['budget'] if embedded else {}
        sha = hashlib.sha256((template('actor') + template('critic')).encode())
        for file in sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.is_file() else []:
            sha.update(file.name.encode() + (file.read_bytes() if file.is_file() else b''))
        self.fingerprint = sha.hexdigest()

    @property
    def can_be_tuned(self):
        return isinstance(self.client, LocalClient)

    def finetune(self, samples):
        self.rounds, calls = (self.rounds + 1, self.recorder.calls)
        before, old = (self._heldout_rate() if self.rate is None else self.rate, self.client.model)
        folder = self.folder / 'lora' / f'round={self.rounds}' if self.folder else None
        self.client.model = lora_round(old, self.client.tokenizer, samples, self.settings.finetune, 1000 * self.seed + self.rounds, folder)
        after = self._heldout_rate()
        accepted = after is None or after >= before
        self.rate = after if accepted else before
        if not accepted:
            self.client.model = old
        return {'round': self.rounds, 'samples': len(samples), 'distinct': len(set(samples)), 'calls_before': calls, 'rate_before': before, 'rate_after': after, 'accepted': accepted}

    def _heldout_rate(self):
        if not self.heldout:
            return None
        first = self.recorder.calls
        seed = 1000 * self.seed
        hits = one_proposal(self.recorder, self.textmap, self.whatif, self.heldout, self.settings.refine, seed)
        for record in self.recorder.records[first:]:
            record['role'] = 'heldout'
        return sum(hits) / len(hits)

    def counts(self):
        return {'actor': dict(sorted(self.actor.counts.items())), 'critic': dict(sorted(self.critic.counts.items()))}

    def state_dict(self):
        weights = self.client.model.state_dict() if self.rounds else None
        return {'recorder': self.recorder.state_dict(), 'actor': self.actor.state_dict(), 'critic': self.critic.state_dict(), 'rounds': self.rounds, 'rate': self.rate, 'weights': weights}

    def load_state_dict(self, state):
        self.recorder.load_state_dict(state['recorder'])
        self.actor.load_state_dict(state['actor'])
        self.critic.load_state_dict(state['critic'])
        self.rounds, self.rate = (state['rounds'], state['rate'])
        if self.rounds:
            self.client.model.load_state_dict(state['weights'])

def read_card(settings, environment, root):
    path = root / settings.path.replace('{env}', environment) / 'card.json'
    if not path.is_file():
        raise ConfigError(f'no card of a language model at {path.relative_to(root)}: the stage language_model makes it')
    return json.loads(path.read_text())
