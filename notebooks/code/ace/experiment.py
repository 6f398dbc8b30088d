import hashlib
import json
import os
import threading
import time
from pathlib import Path
import joblib
import numpy as np
import torch
from tqdm import tqdm
from ace import baselines, checkpoint, config, evaluate, records
from ace.coevolve import CoEvolution
from ace.grid.environment import World
from ace.grid.fastworld import training_world
from ace.grid.whatif import WhatIf
from ace.llm.clients import open_client
from ace.llm.controls import control
from ace.llm.critic import RandomCritic
from ace.llm.team import Team, read_card
from ace.rl.policy import DeployedPolicy
from ace.rl.sac import SAC
CHECKPOINT_EVERY_S = 20.0

def run_cell(environment, variant, seeds=None, output='results'):
    params = config.load()
    settings, root = (params.settings(variant), config.root())
    params.environment(environment)
    if seeds is None:
        ablates = variant in params.grid.ablations.variants and variant not in params.grid.variants
        seeds = [0] if settings.method != 'sac' else params.grid.ablations.seeds if ablates else params.seeds
    if settings.uses_llm:
        open_client(settings.llm, environment, seeds[0], root)
    scratch = scratch_folder(root, output, environment, variant)
    scratch.mkdir(parents=True, exist_ok=True)
    with _Progress(scratch, seeds, f'{environment} {variant}'):
        joblib.Parallel(n_jobs=min(config.jobs(), len(seeds)), batch_size=1)((joblib.delayed(run_seed)(environment, variant, seed, root, output) for seed in seeds))
    for seed in seeds:
        (scratch / f'seed={seed}' / 'state.pt').unlink(missing_ok=True)
    return [root / output / 'runs' / environment / variant / f'seed={seed}' for seed in seeds]

def scratch_folder(root, output, environment, variant):
    return root / 'checkpoints' / output / environment / variant

def run_seed(environment, variant, seed, root, output):
    torch.set_num_threads(1)
    params = config.load(root / 'params.yaml')
    settings = params.settings(variant)
    scratch = scratch_folder(root, output, environment, variant) / f'seed={seed}'
    scratch.mkdir(parents=True, exist_ok=True)
    run = Run(params, settings, environment, seed, root, scratch)
    started = time.time()
    if settings.method == 'sac':
        run.train()
    run.test()
    place = Path(environment) / variant / f'seed={seed}'
    records.write_run(root / output / 'runs' / place, run, variant)
    records.write_provenance(root / output, place, run, started)

class Run:

    def __init__(self, params, settings, environment, seed, root, scratch):
        self.params, self.settings, self.environment, self.seed, self.root = (params, settings, environment, seed, root)
        self.scratch = scratch
        self.world = World(params.environment(environment), params.scenarios, settings.operator)
        self.training = training_world(self.world)
        self.whatif = WhatIf(self.world)
        self.rows, self.finetunes, self.episodes = ([], [], [])
        self.wall = {'train': 0.0, 'evaluate': 0.0, 'llm': 0.0, 'finetune': 0.0}
        self.validation_steps, self.learner = (0, None)
        self.card = None
        self.team = Team(settings, self.world, self.whatif, root, environment, seed, scratch) if settings.uses_llm else None
        if settings.method == 'sac':
            self._make_learner()
        else:
            self.agent = {'do_nothing': baselines.DoNothing, 'reconnect': baselines.DoNothing, 'greedy': lambda: baselines.Greedy(self.whatif, settings.greedy.shortlist), 'dc_argmin': lambda: baselines.DcArgmin(self.whatif, self.world.catalogue, self._card()['actions']), 'llm_only': lambda: baselines.LlmOnly(self.team.actor, self.whatif)}[settings.method]()

    def _make_learner(self):
        s, team = (self.settings, self.team)
        sac = SAC(self.world.catalogue, self.world.features.n, s.sac, self.seed)
        actor = tuner = None
        if s.refine.enabled and s.refine.by_llm:
            actor = team.actor
            tuner = self._finetune if s.finetune.enabled and team.can_be_tuned else None
        elif s.refine.enabled:
            ranking = self._card()['ranking'] if s.refine.proposer == 'frequency' else []
            actor = control(s.refine.proposer, self.world, self.whatif, s.refine, s.greedy.shortlist, ranking)
        self.learner = CoEvolution(self.training, sac, s, self.seed, self._validate, actor=actor, critic=self._make_critic(), tuner=tuner, teacher=team.actor.propose if s.teach.enabled else None)
        self.agent = evaluate.Policy(sac.deployed)

    def _make_critic(self):
        if not self.settings.shape.enabled:
            return None
        return self.team.critic if self.team else RandomCritic(self.settings.shape)

    def roles(self):
        both = {'actor': self.learner.actor, 'critic': self.learner.critic}
        return {name: role for name, role in both.items() if role is not None}

    def _card(self):
        self.card = read_card(self.settings.llm, self.environment, self.root)
        return self.card

    def train(self):
        self._load()
        started = saved = time.perf_counter()
        before, total = (self.wall['train'], self.settings.train.decisions)
        for event in self.learner.run():
            if event.kind == 'validation':
                self.rows.append(event.row)
            elif event.kind == 'finetune':
                self.finetunes.append(event.row)
                continue
            now = time.perf_counter()
            self.wall['train'] = before + now - started
            _report(self.scratch, min(self.learner.count['decisions'], total), total)
            if now - saved > CHECKPOINT_EVERY_S:
                self._save()
                saved = now
        self._save()
        weights = self.learner.best_policy
        policy = DeployedPolicy(self.learner.sac.space, weights)
        policy.save(self.scratch / 'policy.safetensors')
        self.agent = evaluate.Policy(policy)

    def test(self):
        started, steps = (time.perf_counter(), self.world.env_steps)
        self.calls_before_test = self._calls()
        for result in evaluate.play(self.world, self.agent, 'test', range(len(self.world.sets['test']))):
            self.episodes.append(result)
            if self.learner is None:
                _report(self.scratch, len(self.episodes), len(self.world.sets['test']))
        self.test_steps = self.world.env_steps - steps
        self.wall['evaluate'] = time.perf_counter() - started
        if self.learner is not None and self._calls() != self.calls_before_test:
            raise RuntimeError('the deployed policy asked a simulator or a language model: it must act alone')

    def _calls(self):
        return (self.whatif.ac_calls, self.whatif.dc_calls, self.team.recorder.calls if self.team else 0)

    def _validate(self):
        steps = self.training.env_steps
        policy = evaluate.Policy(self.learner.sac.deployed)
        results = list(evaluate.play(self.training, policy, 'validation', range(len(self.world.sets['validation']))))
        self.validation_steps += self.training.env_steps - steps
        return (float(np.mean([r.survival for r in results])), float(np.mean([r.reward_mean for r in results])))

    def _finetune(self, samples):
        started, asking = (time.perf_counter(), self.team.recorder.seconds)
        info = self.team.finetune(samples)
        self.wall['finetune'] += time.perf_counter() - started - (self.team.recorder.seconds - asking)
        return info

    def budget(self):
        if self.learner is None:
            train = {'simulator_calls': 0, 'dc_calls': 0, 'llm_calls': 0, 'env_steps': 0}
        else:
            ac, dc, calls = self.calls_before_test
            train = {'simulator_calls': ac, 'dc_calls': dc, 'llm_calls': calls, 'env_steps': self.learner.count['env_steps']}
        corpus = self.team.pretraining if self.team else self.card['budget'] if self.card else {}
        test = {name: sum((getattr(e, name) for e in self.episodes)) for name in ('simulator_calls', 'dc_calls', 'llm_calls')}
        validation = {'simulator_calls': 0, 'dc_calls': 0, 'llm_calls': 0, 'env_steps': self.validation_steps}
        return {'train': train, 'validation': validation, 'corpus': {name: int(corpus.get(name, 0)) for name in train}, 'test': {**test, 'env_steps': self.test_steps}}

    def _fingerprint(self):
        manner = dict.fromkeys(('timeout_s', 'retries', 'concurrency', 'token_budget'), 1)
        llm = self.settings.llm.model_copy(update=manner)
        sha = hashlib.sha256(config.digest(self.settings.model_copy(update={'llm': llm})).encode())
        sha.update(json.dumps(self.params.model_dump(include={'environments', 'scenarios'}), sort_keys=True).encode())
        sha.update(json.dumps(records.versions()).encode())
        for path in sorted(Path(__file__).parent.rglob('*.py')):
            if path.parent.name not in ('report', 'pipeline'):
                sha.update(path.read_bytes())
        if self.team:
            sha.update(self.team.fingerprint.encode())
        if self.card:
            sha.update(json.dumps(self.card, sort_keys=True).encode())
        return sha.hexdigest()

    def _save(self):
        state = {'fingerprint': self._fingerprint(), 'learner': self.learner.state_dict(), 'team': self.team.state_dict() if self.team else None, 'roles': {name: role.state_dict() for name, role in self.roles().items()}, 'calls': [self.whatif.ac_calls, self.whatif.dc_calls], 'env_steps': self.training.env_steps, 'validation_steps': self.validation_steps, 'rows': self.rows, 'finetunes': self.finetunes, 'wall': self.wall}
        checkpoint.save(state, self.scratch / 'state.pt')

    def _load(self):
        state = checkpoint.load(self.scratch / 'state.pt')
        if state is None:
            return
        if state['fingerprint'] != self._fingerprint():
            print(f'checkpoint of {self.environment} seed {self.seed} is of other settings or code: starting anew')
            return
        self.learner.load_state_dict(state['learner'])
        if self.team:
            self.team.load_state_dict(state['team'])
        for name, role in self.roles().items():
            role.load_state_dict(state['roles'][name])
        self.whatif.ac_calls, self.whatif.dc_calls = state['calls']
        self.training.env_steps, self.validation_steps = (state['env_steps'], state['validation_steps'])
        self.rows, self.finetunes, self.wall = (state['rows'], state['finetunes'], state['wall'])

def _report(scratch, done, total):
    partial = scratch / 'progress.partial'
    partial.write_text(f'{done} {total}')
    os.replace(partial, scratch / 'progress')

class _Progress:

    def __init__(self, scratch, seeds, title):
        self.files = [scratch / f'seed={seed}' / 'progress' for seed in seeds]
        self.title, self.stop = (title, threading.Event())

    def __enter__(self):
        for file in self.files:
            file.unlink(missing_ok=True)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def _watch(self):
        shown = '{desc} {percentage:3.0f} % |{bar}| {elapsed} so far, '
        with tqdm(total=100, desc=self.title, bar_format=shown + 'estimating the time to go') as bar:
            while True:
                finished = self.stop.wait(1.0)
                bar.n = 100 if finished else int(100 * np.mean([_share(file) for file in self.files]))
                if bar.n:
                    bar.bar_format = shown + '{remaining} to go'
                bar.refresh()
                if finished:
                    return

def _share(file):
    try:
        done, total = map(int, file.read_text().split())
        return done / total
    except (FileNotFoundError, ValueError):
        return 0.0
