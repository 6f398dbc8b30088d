import numpy as np
import torch
from ace.llm.controls import ControlActor
from ace.llm.samples import CRITIC_SHARE, Writer
from ace.rl.sac import Network

class Classifier:

    def __init__(self, network, features, actions):
        self.network, self.features, self.actions = (network, features, np.asarray(actions))

    @torch.no_grad()
    def ranking(self, state):
        logits = self.network(torch.from_numpy(self.features(state))[None])[0]
        return self.actions[np.argsort(-logits.numpy(), kind='stable')]

    def as_actor(self, catalogue, whatif, settings):

        def propose(state, legal, rng):
            return [int(action) for action in self.ranking(state) if catalogue.is_legal(legal, int(action))]
        return ControlActor(propose, catalogue, whatif, settings)

def fit(made, textmap, features, settings, sac):
    writer = Writer(textmap, made)
    x = torch.from_numpy(np.stack([features(visit.state) for visit in made.visits]))
    label = torch.tensor([writer.label(visit, [0]) for visit in made.visits])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = Network(x.shape[1], sac.hidden, len(made.actions))
    optimiser = torch.optim.Adam(network.parameters(), lr=sac.lr)
    rng = np.random.default_rng([settings.seed, 9])
    for _ in range(round((1 - CRITIC_SHARE) * settings.steps)):
        drawn = rng.integers(len(x), size=settings.batch_size)
        loss = torch.nn.functional.cross_entropy(network(x[drawn]), label[drawn])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Classifier(network.eval(), features, made.actions)
