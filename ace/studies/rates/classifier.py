"""A plain classifier on the corpus from which the language model learnt: what its labels allow (our reference).

It names actions of the same set. It is trained on the best action of each state other than to do nothing (which it names
only where no other is legal), with as many samples as f_LLM's and in batches of the same size; but for these labels,
which at first held to do nothing, nothing was changed. It differs from f_LLM in more than language: the network is that
of SAC's policy and reads what the policy reads, all loadings, loads and generation, where the text has the ten most
loaded lines; it names the most probable actions, where the model draws; and its samples all ask for the first proposal, where
the model's also show tries, and then ask for the next best.
"""

import numpy as np
import torch

from ace.llm.controls import ControlActor
from ace.llm.models.samples import CRITIC_SHARE, Writer
from ace.rl.sac import Network


class Classifier:
    """Ranks the actions of a set by their probability in a state."""

    def __init__(self, network, features, actions):
        """network: (B, F) -> (B, n) logits; features: GridState -> (F,); actions: (n,) ids."""
        self.network, self.features, self.actions = network, features, np.asarray(actions)

    @torch.no_grad()
    def ranking(self, state):
        """(n,) ids, the most probable first."""
        logits = self.network(torch.from_numpy(self.features(state))[None])[0]
        return self.actions[np.argsort(-logits.numpy(), kind="stable")]

    def as_actor(self, catalogue, whatif, settings):
        """In f_LLM's place: the most probable legal actions one after the other, each validated. settings: Refine."""

        def propose(state, legal, rng):
            return [int(action) for action in self.ranking(state) if catalogue.is_legal(legal, int(action))]

        return ControlActor(propose, catalogue, whatif, settings)


def fit(made, textmap, features, settings, sac):
    """Trained by cross-entropy with the label of each of the corpus's states (`samples.Writer.label`) where to do nothing is
    the bad case.

    made: llm.models.corpus.Corpus; settings: config.LanguageModel, of which seed, steps and batch_size are read, less the share
    of samples that are g_LLM's; sac: config.settings.Sac, of which hidden and lr are. The same seed gives the same bytes.
    """
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
