"""Discrete soft actor-critic over the whole catalogue: networks, losses, learner.

Twin critics, automatic temperature, exact expectations (ace/rl/distribution.py): no action is sampled in a loss.
Our reading where the paper is silent: a log prior on the policy's logits, logits bounded by 6 tanh(l / 6) (unbounded,
the entropy collapses), dueling critics, optional behaviour cloning of refined actions.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ace.config import ConfigError
from ace.config.streams import generator, number
from ace.rl.buffers import Batch
from ace.rl.distribution import ActionSpace, CatalogueDistribution, Values
from ace.rl.fast_ops import BoundedLogits, GatheredQ
from ace.rl.policy import LAYER_NORM_EPS, LOGIT_BOUND, DeployedPolicy


class Network(nn.Module):
    """x (B, F) -> linear, layer norm, ReLU -> linear, ReLU -> (B, n_out). The last layer starts near 0: the policy at
    its prior, the values at 0."""

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
        """x: (B, F) -> (B, hidden), what the head reads."""
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class TwinCritic(nn.Module):
    """Two dueling critics: Q(s, a) = V(s) + adv(s, a), at the hub V + q0 + sum_k w_k(s) b_k."""

    def __init__(self, space: ActionSpace, n_features: int, hidden: int) -> None:
        super().__init__()
        self.one = Network(n_features, hidden, 1 + space.n_logits)
        self.two = Network(n_features, hidden, 1 + space.n_logits)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two (B, 1+E+1+H) tensors of [V, adv (E), q0, w (H)]; `values_of` and `q_of` read them."""
        return self.one(x), self.two(x)


def values_of(space: ActionSpace, output: torch.Tensor) -> Values:
    """output: (B, 1+E+1+H) of one critic -> its values of all actions."""
    state_value, top, bits = output.split([1, space.n_enum + 1, space.n_bits], dim=1)
    return Values(state_value + top, bits)


def q_of(space: ActionSpace, output: torch.Tensor, actions: np.ndarray) -> torch.Tensor:
    """(B,) Q(s_i, a_i) of one critic, from its output (B, 1+E+1+H), for actions (B,) int64 ids."""
    place, coefficient = q_coefficients(space, actions)
    return (output.gather(1, place) * coefficient).sum(1)


def q_taken(space: ActionSpace, head: nn.Linear, h: torch.Tensor, actions: np.ndarray) -> torch.Tensor:
    """The same from what the head reads, h (B, hidden), with the rows of the head that these actions need."""
    return GatheredQ.apply(h, head.weight, head.bias, *q_coefficients(space, actions))


def q_coefficients(space: ActionSpace, actions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Q is linear in a critic's output: places in it, (B, 2+H) int64, and the coefficient of each, (B, 2+H) float32."""
    place = np.zeros((len(actions), 2 + space.n_bits), np.int64)
    place[:, 1] = 1 + np.minimum(actions, space.n_enum)
    place[:, 2:] = 2 + space.n_enum + np.arange(space.n_bits)
    coefficient = np.ones(place.shape, np.float32)
    coefficient[:, 2:] = space.bits_of(actions)
    return torch.from_numpy(place), torch.from_numpy(coefficient)


def soft_target(dist_next: CatalogueDistribution, target1: Values, target2: Values, reward, discount, alpha: float):
    """(B,) R + discount (E[min Q'(s', a')] + alpha H(s')). reward, discount: (B,); discount = gamma^n, 0 on blackout.
    In a quiet state only do nothing is legal, so this is R + discount min Q'(s', 0)."""
    return reward + discount * dist_next.soft_value(target1, target2, alpha)[0]


def critic_loss(q1: torch.Tensor, q2: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """Soft Bellman error (paper Eq. 2): mean of ((q1 - y)^2 + (q2 - y)^2) / 2. All (B,). Every row of D_mix counts
    alike: the weights of Eq. 8 act through the sampling."""
    loss = 0.5 * ((q1 - target).square() + (q2 - target).square()).mean()
    q = torch.minimum(q1, q2).detach()
    return loss, {"q_mean": q.mean(), "q_std": q.std(correction=0)}


def policy_loss(
    dist: CatalogueDistribution, values1: Values, values2: Values, alpha: float, bc: float, batch: Batch
) -> tuple[torch.Tensor, dict]:
    """Mean over states with a choice of E_a[alpha log p - min Q], plus bc times the behaviour-cloning term: mean over
    the refined rows of weight * -log p(refined action), weight being the refinement's gain. bc = 0: the paper's loss.

    values1, values2: without gradient. Returns (scalar, info with the (B,) entropy, nats).
    """
    value, entropy = dist.soft_value(values1, values2, alpha)
    choice = dist.has_choice.to(entropy.dtype)
    loss = -(value * choice).sum() / choice.sum().clamp_min(1.0)
    if bc > 0.0 and batch.is_refined.any():
        is_refined = torch.from_numpy(batch.is_refined)
        nll = -dist.log_prob(batch.action).masked_fill(is_refined == 0, 0.0)
        loss = loss + bc * (torch.from_numpy(batch.weight) * nll).sum() / is_refined.sum()
    return loss, {"entropy": entropy}


class DistillationBatch(NamedTuple):
    """States in which the model's proposals are imitated, validated or not: x (n, F), legal (n, L), action (n,) ids."""

    x: np.ndarray
    legal: np.ndarray
    action: np.ndarray
    weight: float


def distillation_loss(dist: CatalogueDistribution, distillation: DistillationBatch) -> torch.Tensor:
    """weight x mean -log p(proposal): the KL divergence of the policy from a model that proposes one action a state."""
    return -distillation.weight * dist.log_prob(distillation.action).mean()


def temperature_loss(log_alpha, entropy, has_choice, target_entropy: float) -> tuple[torch.Tensor, dict]:
    """Mean over states with a choice of log alpha (H - target): alpha falls where the policy is more random than the
    target. States without a choice have H = 0 whatever the policy does; counted, they would only drive alpha up.
    entropy: (B,) nats."""
    choice = has_choice.to(entropy.dtype)
    gap = ((entropy - target_entropy) * choice).sum() / choice.sum().clamp_min(1.0)
    mean_entropy = (entropy * choice).sum() / choice.sum().clamp_min(1.0)
    return log_alpha * gap, {"entropy": mean_entropy}


class SAC:
    """The learner.

    settings: hidden, lr, tau_target, average, grad_clip, alpha_start, target_entropy (nats), prior_do_nothing, bc; gamma is
    not read here, as the discount arrives with the batch. The same seed and batches give the same bytes.
    acting: the policy of the present weights, which collects the transitions; `deployed`: of their average over the updates.
    """

    def __init__(self, catalogue, n_features: int, settings, seed: int) -> None:
        self.space, self.settings, self.updates = ActionSpace(catalogue), settings, 0
        self.rng = generator(seed, "acting")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(seed, "weights"))
            self.policy = Network(n_features, settings.hidden, self.space.n_logits)
            self.critic = TwinCritic(self.space, n_features, settings.hidden)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_prior = torch.from_numpy(self.space.log_prior(settings.prior_do_nothing))
        self.log_alpha = nn.Parameter(torch.tensor(float(np.log(settings.alpha_start))))
        parameters = [*self.policy.parameters(), *self.critic.parameters(), self.log_alpha]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.lr, fused=True)
        # views into the parameters' memory, which optimiser and load_state_dict change in place: never stale
        self.acting = self._numpy_policy(dict(self.policy.named_parameters()))
        self.average = {name: p.detach().clone() for name, p in self.policy.named_parameters()} if settings.average else {}
        self.averaged = self._numpy_policy(self.average) if self.average else self.acting

    def _numpy_policy(self, weights: dict[str, torch.Tensor]) -> DeployedPolicy:
        arrays = {name: weight.detach().numpy() for name, weight in weights.items()}
        return DeployedPolicy(self.space, arrays | {"log_prior": self.log_prior.numpy()})

    @property
    def deployed(self) -> DeployedPolicy:
        """What is validated, kept and tested: the policy of the averaged weights, with `average` = 0 that of the present
        ones. It follows the updates. ConfigError before the first one, when there is nothing to average."""
        if self.average and not self.updates:
            raise ConfigError(
                f"sac.average = {self.settings.average}: there is no average before the first update; take SAC.acting"
            )
        return self.averaged

    def distribution(self, x: torch.Tensor, legal: np.ndarray) -> CatalogueDistribution:
        """x: (B, F), legal: (B, L) -> pi(. | s)."""
        return CatalogueDistribution(self.space, BoundedLogits.apply(self.policy(x), self.log_prior, LOGIT_BOUND), legal)

    def act(self, x: np.ndarray, legal: np.ndarray, greedy: bool) -> int:
        """x: (F,), legal: (L,) -> action id, sampled from the policy with the learner's own generator unless greedy."""
        return self.acting.act(x, legal, None if greedy else self.rng)

    def update(self, batch: Batch, distillation: DistillationBatch | None = None) -> dict[str, float]:
        """One gradient step on policy, critics and temperature, all at the present parameters. distillation: of
        LLM4Teach, or None.

        Returns loss_critic, loss_policy, loss_alpha, entropy (states with a choice), alpha, q_mean, q_std (of taken
        actions, minimum of both critics). Raises FloatingPointError, before anything has changed, if a loss or gradient
        is not finite: also when a row of D_LLM holds an action that is illegal in its state and bc > 0.
        """
        s = self.settings
        x, x_next = torch.from_numpy(batch.x), torch.from_numpy(batch.x_next)
        alpha = float(self.log_alpha.detach().exp())
        with torch.no_grad():
            reward, discount = torch.from_numpy(batch.reward), torch.from_numpy(batch.discount)
            future = [values_of(self.space, o) for o in self.target(x_next)]
            y = soft_target(self.distribution(x_next, batch.legal_next), *future, reward, discount, alpha)
        # the critics learn from the taken actions alone; the policy needs the values of all, without gradient
        critics = [(critic.head, critic.body(x)) for critic in (self.critic.one, self.critic.two)]
        with torch.no_grad():
            fixed = [values_of(self.space, head(h)) for head, h in critics]
        dist = self.distribution(x, batch.legal)
        taken = (q_taken(self.space, head, h, batch.action) for head, h in critics)
        loss_critic, q_info = critic_loss(*taken, y)
        loss_policy, info = policy_loss(dist, *fixed, alpha, s.bc, batch)
        if distillation is not None:
            there = self.distribution(torch.from_numpy(distillation.x), distillation.legal)
            loss_policy = loss_policy + distillation_loss(there, distillation)
        loss_alpha, entropy_info = temperature_loss(self.log_alpha, info["entropy"], dist.has_choice, s.target_entropy)
        losses = {"loss_critic": loss_critic, "loss_policy": loss_policy, "loss_alpha": loss_alpha}
        out = {k: float(v.detach()) for k, v in (losses | q_info | entropy_info).items()} | {"alpha": alpha}
        self._require_finite({k: out[k] for k in losses})
        self.optimiser.zero_grad()
        # the three losses share no parameter with a gradient, so one backward pass and one optimiser serve all
        (loss_critic + loss_policy + loss_alpha).backward()
        self._clip_gradients()
        self.optimiser.step()
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), s.tau_target)
        self.updates += 1
        if self.average:
            # the plain mean of the first 1 / (1 - average) updates: the weights before any learning have no share in it
            share = max(1.0 - s.average, 1.0 / self.updates)
            torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in self.policy.parameters()], share)
        return out

    def _clip_gradients(self) -> None:
        """To norm grad_clip, policy and critics each; a gradient within it, as most are, is read only."""
        norms = {}
        for name, module in (("policy", self.policy), ("critics", self.critic)):
            gradients = [p.grad for p in module.parameters()]
            norm = nn.utils.get_total_norm(gradients, foreach=True)
            norms[f"gradient of the {name}"] = float(norm)
            if norm > self.settings.grad_clip:
                nn.utils.clip_grads_with_norm_(module.parameters(), self.settings.grad_clip, norm, foreach=True)
        self._require_finite(norms)

    def _require_finite(self, numbers: dict[str, float]) -> None:
        bad = [f"{name} = {value}" for name, value in numbers.items() if not np.isfinite(value)]
        if bad:
            raise FloatingPointError(f"SAC update {self.updates + 1}: {', '.join(bad)}; no parameter was changed")

    def state_dict(self) -> dict:
        """A copy of everything that a run needs to continue with the same bytes; goes through torch.save and
        torch.load(weights_only=True)."""
        return copy.deepcopy(
            {
                "policy": self.policy.state_dict(),
                "average": self.average,
                "critic": self.critic.state_dict(),
                "target": self.target.state_dict(),
                "log_alpha": self.log_alpha.detach(),
                "optimiser": self.optimiser.state_dict(),
                "rng": self.rng.bit_generator.state,
                "updates": self.updates,
            }
        )

    def load_state_dict(self, state: dict) -> None:
        """The inverse; networks of another size end in torch's RuntimeError."""
        for name in ("policy", "critic", "target"):
            getattr(self, name).load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
            for name, weight in self.average.items():
                weight.copy_(state["average"][name])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.rng.bit_generator.state = state["rng"]
        self.updates = state["updates"]
