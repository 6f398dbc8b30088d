import hashlib
import json
from ace.llm.clients import LocalClient, Recorder, open_client
from ace.llm.embedded import lora_round
from ace.llm.roles import PolicyActor, ValueCritic
from ace.llm.text import TextMap, template

class Team:

    def __init__(self, settings, world, whatif, root, environment, seed):
        self.settings, self.seed = (settings, seed)
        self.client = open_client(settings.llm, environment, seed, root)
        self.recorder = Recorder(self.client)
        textmap = TextMap(world)
        self.actor = PolicyActor(self.recorder, textmap, whatif, settings.refine)
        self.critic = ValueCritic(self.recorder, textmap, settings.shape)
        self.rounds = 0
        folder = root / settings.llm.path.replace('{env}', environment)
        card = folder / 'card.json'
        embedded = settings.llm.client == 'embedded'
        self.pretraining = json.loads(card.read_text())['budget'] if embedded and card.is_file() else {}
        sha = hashlib.sha256((template('actor') + template('critic')).encode())
        for file in sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.is_file() else []:
            sha.update(file.name.encode() + (file.read_bytes() if file.is_file() else b''))
        self.fingerprint = sha.hexdigest()

    @property
    def can_be_tuned(self):
        return isinstance(self.client, LocalClient)

    def finetune(self, samples):
        self.rounds += 1
        seed = 1000 * self.seed + self.rounds
        self.client.model = lora_round(self.client.model, self.client.tokenizer, samples, self.settings.finetune, seed)
        return {'round': self.rounds, 'samples': len(samples), 'distinct': len(set(samples)), 'calls_before': self.recorder.calls}

    def counts(self):
        return {'actor': dict(sorted(self.actor.counts.items())), 'critic': dict(sorted(self.critic.counts.items()))}

    def state_dict(self):
        weights = self.client.model.state_dict() if self.rounds else None
        return {'recorder': self.recorder.state_dict(), 'actor': self.actor.state_dict(), 'critic': self.critic.state_dict(), 'rounds': self.rounds, 'weights': weights}

    def load_state_dict(self, state):
        self.recorder.load_state_dict(state['recorder'])
        self.actor.load_state_dict(state['actor'])
        self.critic.load_state_dict(state['critic'])
        self.rounds = state['rounds']
        if self.rounds:
            self.client.model.load_state_dict(state['weights'])
