from __future__ import annotations
import copy
from typing import NamedTuple
import numpy as np
import torch
from torch import nn
from ace.rl.buffers import Batch
from ace.rl.distribution import ActionSpace, CatalogueDistribution, Values
from ace.rl.policy import LAYER_NORM_EPS, LOGIT_BOUND, DeployedPolicy
PRIOR_HALF = 50

class Network(nn.Module):

    def __init__(self, n_features: int, hidden: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_features, hidden)
        self.norm = nn.LayerNorm(hidden, eps=LAYER_NORM_EPS)
        self.second = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, n_out)
        with torch.no_grad():
            self.head.weight.mul_(0.01)
            self.head.bias.zero_()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

class Bounded(torch.autograd.Function):

    @staticmethod
    def forward(ctx, raw, log_prior):
        small = (raw * (2.0 / LOGIT_BOUND)).exp_().add_(1.0).reciprocal_()
        ctx.save_for_backward(small)
        return torch.sub(log_prior + LOGIT_BOUND, small, alpha=2.0 * LOGIT_BOUND)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return (torch.ops.aten.sigmoid_backward(gradient, ctx.saved_tensors[0]).mul_(4.0), None)

class Taken(torch.autograd.Function):

    @staticmethod
    def forward(ctx, h, weight, bias, place, share):
        rows = nn.functional.embedding_bag(place, weight, mode='sum', per_sample_weights=share)
        ctx.save_for_backward(h, rows, place, share)
        ctx.n = len(weight)
        return (h * rows).sum(1) + (bias[place] * share).sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        h, rows, place, share = ctx.saved_tensors
        place, share = (place.flatten(), share * gradient[:, None])
        weight = h.new_zeros(ctx.n, h.shape[1]).index_add_(0, place, (share[:, :, None] * h[:, None]).flatten(0, 1))
        bias = h.new_zeros(ctx.n).index_add_(0, place, share.flatten())
        return (gradient[:, None] * rows, weight, bias, None, None)

class TwinCritic(nn.Module):

    def __init__(self, space: ActionSpace, n_features: int, hidden: int) -> None:
        super().__init__()
        self.one = Network(n_features, hidden, 1 + space.n_logits)
        self.two = Network(n_features, hidden, 1 + space.n_logits)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.one(x), self.two(x))

def values_of(space: ActionSpace, output: torch.Tensor) -> Values:
    state_value, top, bits = output.split([1, space.n_enum + 1, space.n_bits], dim=1)
    return Values(state_value + top, bits)

def q_of(space: ActionSpace, output: torch.Tensor, actions: np.ndarray) -> torch.Tensor:
    place, share = _places(space, actions)
    return (output.gather(1, place) * share).sum(1)

def q_taken(space: ActionSpace, head: nn.Linear, h: torch.Tensor, actions: np.ndarray) -> torch.Tensor:
    return Taken.apply(h, head.weight, head.bias, *_places(space, actions))

def _places(space: ActionSpace, actions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    place = np.zeros((len(actions), 2 + space.n_bits), np.int64)
    place[:, 1] = 1 + np.minimum(actions, space.n_enum)
    place[:, 2:] = 2 + space.n_enum + np.arange(space.n_bits)
    share = np.ones(place.shape, np.float32)
    share[:, 2:] = space.bits_of(actions)
    return (torch.from_numpy(place), torch.from_numpy(share))

def soft_target(dist_next: CatalogueDistribution, target1: Values, target2: Values, reward, discount, alpha: float):
    return reward + discount * dist_next.soft_value(target1, target2, alpha)[0]

def critic_loss(q1: torch.Tensor, q2: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, dict]:
    loss = 0.5 * ((q1 - target).square() + (q2 - target).square()).mean()
    q = torch.minimum(q1, q2).detach()
    return (loss, {'q_mean': q.mean(), 'q_std': q.std(correction=0)})

def policy_loss(dist: CatalogueDistribution, values1: Values, values2: Values, alpha: float, bc: float, batch: Batch) -> tuple[torch.Tensor, dict]:
    value, entropy = dist.soft_value(values1, values2, alpha)
    choice = dist.has_choice.to(entropy.dtype)
    loss = -(value * choice).sum() / choice.sum().clamp_min(1.0)
    if bc > 0.0 and batch.is_llm.any():
        is_llm = torch.from_numpy(batch.is_llm)
        nll = -dist.log_prob(batch.action).masked_fill(is_llm == 0, 0.0)
        loss = loss + bc * (torch.from_numpy(batch.weight) * nll).sum() / is_llm.sum()
    return (loss, {'entropy': entropy})

class Pull(NamedTuple):
    x: np.ndarray
    legal: np.ndarray
    action: np.ndarray
    weight: float

def pull_loss(dist: CatalogueDistribution, pull: Pull) -> torch.Tensor:
    return -pull.weight * dist.log_prob(pull.action).mean()

def temperature_loss(log_alpha, entropy, has_choice, target_entropy: float) -> tuple[torch.Tensor, dict]:
    choice = has_choice.to(entropy.dtype)
    gap = ((entropy - target_entropy) * choice).sum() / choice.sum().clamp_min(1.0)
    mean_entropy = (entropy * choice).sum() / choice.sum().clamp_min(1.0)
    return (log_alpha * gap, {'entropy': mean_entropy})

class SAC:

    def __init__(self, catalogue, n_features: int, settings, seed: int) -> None:
        self.space, self.settings, self.updates = (ActionSpace(catalogue), settings, 0)
        self.rng = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Network(n_features, settings.hidden, self.space.n_logits)
            self.critic = TwinCritic(self.space, n_features, settings.hidden)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_prior = torch.from_numpy(self.space.log_prior(settings.prior_do_nothing))
        self.log_alpha = nn.Parameter(torch.tensor(float(np.log(settings.alpha_start))))
        parameters = [*self.policy.parameters(), *self.critic.parameters(), self.log_alpha]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.lr, fused=True)
        weights = {name: p.detach().numpy() for name, p in self.policy.named_parameters()}
        self.deployed = DeployedPolicy(self.space, weights | {'log_prior': self.log_prior.numpy()})

    def distribution(self, x: torch.Tensor, legal: np.ndarray) -> CatalogueDistribution:
        return CatalogueDistribution(self.space, Bounded.apply(self.policy(x), self.log_prior), legal)

    def act(self, x: np.ndarray, legal: np.ndarray, greedy: bool) -> int:
        return self.deployed.act(x, legal, None if greedy else self.rng)

    def follow(self, actions: np.ndarray) -> None:
        share = self.settings.prior_llm * len(actions) / (len(actions) + PRIOR_HALF)
        start = self.space.log_prior(self.settings.prior_do_nothing)
        self.log_prior.copy_(torch.from_numpy(self.space.log_prior_of(start, np.asarray(actions, np.int64), share)))

    def update(self, batch: Batch, pull: Pull | None=None) -> dict[str, float]:
        s = self.settings
        x, x_next = (torch.from_numpy(batch.x), torch.from_numpy(batch.x_next))
        alpha = float(self.log_alpha.detach().exp())
        with torch.no_grad():
            reward, discount = (torch.from_numpy(batch.reward), torch.from_numpy(batch.discount))
            future = [values_of(self.space, o) for o in self.target(x_next)]
            y = soft_target(self.distribution(x_next, batch.legal_next), *future, reward, discount, alpha)
        critics = [(critic.head, critic.body(x)) for critic in (self.critic.one, self.critic.two)]
        with torch.no_grad():
            fixed = [values_of(self.space, head(h)) for head, h in critics]
        dist = self.distribution(x, batch.legal)
        taken = (q_taken(self.space, head, h, batch.action) for head, h in critics)
        loss_critic, q_info = critic_loss(*taken, y)
        loss_policy, info = policy_loss(dist, *fixed, alpha, s.bc, batch)
        if pull is not None:
            loss_policy = loss_policy + pull_loss(self.distribution(torch.from_numpy(pull.x), pull.legal), pull)
        loss_alpha, entropy_info = temperature_loss(self.log_alpha, info['entropy'], dist.has_choice, s.target_entropy)
        losses = {'loss_critic': loss_critic, 'loss_policy': loss_policy, 'loss_alpha': loss_alpha}
        out = {k: float(v.detach()) for k, v in (losses | q_info | entropy_info).items()} | {'alpha': alpha}
        self._require_finite({k: out[k] for k in losses})
        self.optimiser.zero_grad()
        (loss_critic + loss_policy + loss_alpha).backward()
        self._clip_gradients()
        self.optimiser.step()
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), s.tau_target)
        self.updates += 1
        return out

    def _clip_gradients(self) -> None:
        norms = {}
        for name, module in (('policy', self.policy), ('critics', self.critic)):
            gradients = [p.grad for p in module.parameters()]
            norm = nn.utils.get_total_norm(gradients, foreach=True)
            norms[f'gradient of the {name}'] = float(norm)
            if norm > self.settings.grad_clip:
                nn.utils.clip_grads_with_norm_(module.parameters(), self.settings.grad_clip, norm, foreach=True)
        self._require_finite(norms)

    def _require_finite(self, numbers: dict[str, float]) -> None:
        bad = [f'{name} = {value}' for name, value in numbers.items() if not np.isfinite(value)]
        if bad:
            raise FloatingPointError(f"SAC update {self.updates + 1}: {', '.join(bad)}; no parameter was changed")

    @torch.no_grad()
    def q_values(self, x: np.ndarray, ids) -> np.ndarray:
        ids = np.asarray(ids, dtype=np.int64)
        outputs = self.critic(torch.from_numpy(np.asarray(x, np.float32))[None])
        return torch.minimum(*(q_of(self.space, o.expand(len(ids), -1), ids) for o in outputs)).numpy()

    def state_dict(self) -> dict:
        return copy.deepcopy({'policy': self.policy.state_dict(), 'critic': self.critic.state_dict(), 'target': self.target.state_dict(), 'log_alpha': self.log_alpha.detach(), 'log_prior': self.log_prior, 'optimiser': self.optimiser.state_dict(), 'rng': self.rng.bit_generator.state, 'updates': self.updates})

    def load_state_dict(self, state: dict) -> None:
        for name in ('policy', 'critic', 'target'):
            getattr(self, name).load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state['log_alpha'])
            self.log_prior.copy_(state['log_prior'])
        self.optimiser.load_state_dict(copy.deepcopy(state['optimiser']))
        self.rng.bit_generator.state = state['rng']
        self.updates = state['updates']
