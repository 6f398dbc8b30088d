import gzip
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
import pandas as pd
CHECKPOINT_RULE = 'highest mean survival on the validation scenarios, then highest mean reward, then the earliest'
HOME = Path(__file__).parents[1]
VERSIONS = ('grid2op', 'lightsim2grid', 'numpy', 'torch', 'transformers', 'peft')

def write_run(folder, run, variant):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    episodes = pd.DataFrame([{'episode': i, **e.row()} for i, e in enumerate(run.episodes)])
    episodes.to_csv(folder / 'episodes.csv', index=False, float_format='%.6g', lineterminator='\n')
    manifest = {'env': run.environment, 'variant': variant, 'seed': run.seed, 'scale': run.params.scale, 'settings': run.settings.model_dump(), 'environment': run.world.spec.model_dump(), 'test_hash': test_hash(run), 'versions': versions(), 'budget': run.budget()}
    if run.learner is not None:
        rows = pd.DataFrame(run.rows)
        rows.to_csv(folder / 'training.csv', index=False, float_format='%.6g', lineterminator='\n')
        manifest |= {'refinements': run.learner.count['refined'], 'refine_tried': run.learner.count['refine_tried'], 'shaped': run.learner.count['shaped'], 'finetune_rounds': run.finetunes, 'decisions': run.learner.count['decisions'], 'updates': run.learner.count['updates'], 'best_validation': {'survival': run.learner.best[0], 'reward_mean': run.learner.best[1]}, 'checkpoint_rule': CHECKPOINT_RULE, 'weights_sha256': hashlib.sha256((run.scratch / 'policy.safetensors').read_bytes()).hexdigest()}
        shutil.copy(run.scratch / 'policy.safetensors', folder)
    roles = (run.team.counts() if run.team else {}) | {name: dict(sorted(role.counts.items())) for name, role in (run.roles() if run.learner else {}).items()}
    if roles:
        manifest['roles'] = roles
    if run.team:
        run.team.recorder.write(folder / 'transcript.jsonl.gz')
    (folder / 'manifest.json').write_text(json.dumps(manifest, indent=1, sort_keys=True) + '\n')

def versions():
    return {name: importlib.metadata.version(name).split('+')[0] for name in VERSIONS}

def test_hash(run):
    sha = hashlib.sha256(run.world.sets['test'].hash().encode())
    sha.update(json.dumps([run.world.spec.model_dump(), run.world.operator.danger], sort_keys=True).encode())
    return sha.hexdigest()[:16]

def write_provenance(output, place, run, started):
    folder, path = (output / 'runs' / place, (output / 'provenance' / place).with_suffix('.json'))
    sha = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        sha.update(gzip.decompress(file.read_bytes()) if file.suffix == '.gz' else file.read_bytes())
    result = sha.hexdigest()
    if path.exists() and json.loads(path.read_text()).get('result_sha256') == result:
        return
    decisions = sum((e.decisions for e in run.episodes))
    latency = 1000.0 * sum((e.seconds for e in run.episodes)) / max(decisions, 1)
    if run.team:
        run.wall['llm'] = run.team.recorder.seconds
    provenance = {'result_sha256': result, 'commit': _commit(), 'cpu': _cpu(), 'cores': os.cpu_count(), 'started': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(started)), 'wall_s': {name: round(seconds, 1) for name, seconds in run.wall.items()}, 'decision_latency_ms': round(latency, 4), 'llm_batches': run.team.recorder.batches if run.team else []}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(provenance, indent=1, sort_keys=True) + '\n')

def _commit():
    found = subprocess.run(['git', 'rev-parse', '--short=12', 'HEAD'], cwd=HOME, capture_output=True, text=True)
    changed = subprocess.run(['git', 'status', '--porcelain', 'ace'], cwd=HOME, capture_output=True, text=True)
    return (found.stdout.strip() or 'unknown') + ('-dirty' if changed.stdout.strip() else '')

def _cpu():
    info = Path('/proc/cpuinfo')
    names = [line.split(':')[1].strip() for line in info.read_text().splitlines() if 'model name' in line] if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()
