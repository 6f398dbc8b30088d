from __future__ import annotations
import copy
import json
from pathlib import Path
import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn
from ace.rl.buffers import Batch
from ace.rl.distribution import ActionSpace, CatalogueDistribution, Values, mode, sample
LOGIT_BOUND = 6.0
LAYER_NORM_EPS = 1e-05

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))

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
    coefficients = np.zeros(output.shape, np.float32)
    coefficients[:, 0] = 1.0
    coefficients[np.arange(len(actions)), 1 + np.minimum(actions, space.n_enum)] = 1.0
    coefficients[:, 2 + space.n_enum:] = space.bits_of(actions)
    return (output * torch.from_numpy(coefficients)).sum(1)

def soft_target(dist_next: CatalogueDistribution, target1: Values, target2: Values, reward, discount, alpha: float):
    return reward + discount * (dist_next.expectation_of_min(target1, target2) + alpha * dist_next.entropy())

def critic_loss(q1: torch.Tensor, q2: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, dict]:
    loss = 0.5 * ((q1 - target).square() + (q2 - target).square()).mean()
    q = torch.minimum(q1, q2).detach()
    return (loss, {'q_mean': q.mean(), 'q_std': q.std(correction=0)})

def policy_loss(dist: CatalogueDistribution, values1: Values, values2: Values, alpha: float, bc: float, batch: Batch) -> tuple[torch.Tensor, dict]:
    entropy = dist.entropy()
    choice = dist.has_choice.to(entropy.dtype)
    per_state = -alpha * entropy - dist.expectation_of_min(values1, values2)
    loss = (per_state * choice).sum() / choice.sum().clamp_min(1.0)
    if bc > 0.0 and batch.is_llm.any():
        is_llm = torch.from_numpy(batch.is_llm)
        nll = -dist.log_prob(batch.action).masked_fill(is_llm == 0, 0.0)
        loss = loss + bc * (torch.from_numpy(batch.weight) * nll).sum() / is_llm.sum()
    return (loss, {'entropy': entropy.detach()})

def temperature_loss(log_alpha, entropy, has_choice, target_entropy: float) -> tuple[torch.Tensor, dict]:
    choice = has_choice.to(entropy.dtype)
    gap = ((entropy - target_entropy) * choice).sum() / choice.sum().clamp_min(1.0)
    mean_entropy = (entropy * choice).sum() / choice.sum().clamp_min(1.0)
    return (log_alpha * gap, {'entropy': mean_entropy})

class DeployedPolicy:

    def __init__(self, space: ActionSpace, weights: dict[str, np.ndarray]) -> None:
        self.space, self.weights = (space, weights)

    def logits(self, x: np.ndarray) -> np.ndarray:
        w = self.weights
        h = w['first.weight'] @ x + w['first.bias']
        h = h - h.mean()
        h = h / np.sqrt(h @ h / h.size + np.float32(LAYER_NORM_EPS)) * w['norm.weight'] + w['norm.bias']
        h = np.maximum(w['second.weight'] @ np.maximum(h, 0.0) + w['second.bias'], 0.0)
        raw = w['head.weight'] @ h + w['head.bias']
        return np.float32(LOGIT_BOUND) * np.tanh(raw / np.float32(LOGIT_BOUND)) + w['log_prior']

    def act(self, x: np.ndarray, legal: np.ndarray, rng: np.random.Generator | None) -> int:
        logits, legal = (self.logits(np.asarray(x, np.float32))[None], np.asarray(legal)[None])
        chosen = mode(self.space, logits, legal) if rng is None else sample(self.space, logits, legal, rng)
        return int(chosen[0])

    def save(self, path: Path) -> None:
        space = self.space
        card = {'n_features': self.weights['first.weight'].shape[1], 'n_enum': space.n_enum, 'hub_bits': space.n_bits}
        card['n_actions'] = space.n_actions
        tensors = {k: np.ascontiguousarray(v) for k, v in self.weights.items()}
        save_file(tensors, str(path), metadata={'policy': json.dumps(card, sort_keys=True)})

def load_policy(path: Path, catalogue) -> DeployedPolicy:
    if not Path(path).is_file():
        raise FileNotFoundError(f'no trained policy at {path}')
    space = ActionSpace(catalogue)
    with safe_open(str(path), framework='numpy') as file:
        card = json.loads((file.metadata() or {}).get('policy', '{}'))
        weights = {name: file.get_tensor(name) for name in file.keys()}
    for key, ours in {'n_enum': space.n_enum, 'hub_bits': space.n_bits, 'n_actions': space.n_actions}.items():
        if card.get(key) != ours:
            raise ValueError(f'policy {path} is for another catalogue: {key} is {card.get(key)} there and {ours} here')
    return DeployedPolicy(space, weights)

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
        logits = LOGIT_BOUND * torch.tanh(self.policy(x) / LOGIT_BOUND) + self.log_prior
        return CatalogueDistribution(self.space, logits, legal)

    def act(self, x: np.ndarray, legal: np.ndarray, greedy: bool) -> int:
        return self.deployed.act(x, legal, None if greedy else self.rng)

    def update(self, batch: Batch) -> dict[str, float]:
        s = self.settings
        x, x_next = (torch.from_numpy(batch.x), torch.from_numpy(batch.x_next))
        alpha = float(self.log_alpha.detach().exp())
        with torch.no_grad():
            reward, discount = (torch.from_numpy(batch.reward), torch.from_numpy(batch.discount))
            future = [values_of(self.space, o) for o in self.target(x_next)]
            y = soft_target(self.distribution(x_next, batch.legal_next), *future, reward, discount, alpha)
        outputs = self.critic(x)
        fixed = [values_of(self.space, o.detach()) for o in outputs]
        dist = self.distribution(x, batch.legal)
        loss_critic, q_info = critic_loss(*(q_of(self.space, o, batch.action) for o in outputs), y)
        loss_policy, info = policy_loss(dist, *fixed, alpha, s.bc, batch)
        loss_alpha, entropy_info = temperature_loss(self.log_alpha, info['entropy'], dist.has_choice, s.target_entropy)
        losses = {'loss_critic': loss_critic, 'loss_policy': loss_policy, 'loss_alpha': loss_alpha}
        out = {k: float(v.detach()) for k, v in (losses | q_info | entropy_info).items()} | {'alpha': alpha}
        self._require_finite({k: out[k] for k in losses})
        self.optimiser.zero_grad()
        (loss_critic + loss_policy + loss_alpha).backward()
        norms = {f'gradient of the {name}': float(nn.utils.clip_grad_norm_(module.parameters(), s.grad_clip, foreach=True)) for name, module in (('policy', self.policy), ('critics', self.critic))}
        self._require_finite(norms)
        self.optimiser.step()
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), s.tau_target)
        self.updates += 1
        return out

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
        return copy.deepcopy({'policy': self.policy.state_dict(), 'critic': self.critic.state_dict(), 'target': self.target.state_dict(), 'log_alpha': self.log_alpha.detach(), 'optimiser': self.optimiser.state_dict(), 'rng': self.rng.bit_generator.state, 'updates': self.updates})

    def load_state_dict(self, state: dict) -> None:
        for name in ('policy', 'critic', 'target'):
            getattr(self, name).load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state['log_alpha'])
        self.optimiser.load_state_dict(copy.deepcopy(state['optimiser']))
        self.rng.bit_generator.state = state['rng']
        self.updates = state['updates']

    def save_policy(self, path: Path) -> None:
        self.deployed.save(path)
