import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
import yaml
from ace.pipeline.kernel import PREFIX, PYTHON, environment
ROOT = Path(__file__).resolve().parents[2]
COPIED = ('ace', 'notebooks', 'README.md', 'dvc.yaml', '.dvcignore')
GENERATED = {'__pycache__', '.ipynb_checkpoints', 'code'}
SECONDS = {'code': 4, 'scenarios': 10, 'language_model': 90, 'baseline': 12, 'train': 40, 'ablation': 40, 'outages': 30, 'official_score': 30, 'foresight': 30, 'lora': 25, 'proposers': 40, 'diagnosis': 75, 'environments': 15}
SECONDS_OTHER = 5
CELLS = {'train', 'ablation', 'other_model', 'baseline', 'lm_baseline', 'language_model'}
CHECK = '\nimport sys\nfrom ace import checked, config\ntry:\n    config.load(sys.argv[1])\n    config.jobs()\nexcept checked.ConfigError as error:\n    sys.exit(str(error))\n'
DVC_CONFIG = '[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n'
STAGE = re.compile("^(Running stage|Stage) '([^']+)'(.*)")
NOISE = ('Updating lock file', 'Generating lock file', 'Use `dvc push`', 'To track the changes', '\tgit add', 'To enable auto')

class WorkspaceError(Exception):
    pass

def sources(root):
    for name in COPIED:
        top = root / name
        for path in sorted(top.rglob('*')) if top.is_dir() else [top]:
            inside = path.relative_to(root)
            if path.is_file() and (not GENERATED.intersection(inside.parts)):
                yield inside

def copy_changed(source, target):
    data = source.read_bytes()
    if not target.is_file() or target.read_bytes() != data:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

def remove_stale(folder, kept):
    for name in COPIED:
        for path in sorted((folder / name).rglob('*')):
            inside = path.relative_to(folder)
            if path.is_file() and inside not in kept and (not GENERATED.intersection(inside.parts)):
                path.unlink()

def prepare(name, params_file, root=ROOT):
    params_file = Path(params_file)
    if not params_file.is_file():
        raise WorkspaceError(f'{params_file}: no such file')
    folder = root / name
    kept = set(sources(root))
    for inside in sorted(kept):
        copy_changed(root / inside, folder / inside)
    remove_stale(folder, kept)
    copy_changed(params_file, folder / 'params.yaml')
    link = folder / '.venv'
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(PREFIX, folder))
    if not (folder / '.dvc/config').is_file():
        subprocess.run([*dvc(), 'init', '-q', '--no-scm'], cwd=folder, env=surroundings(folder), check=True)
        (folder / '.dvc/config').write_text(DVC_CONFIG)
    return folder

def dvc():
    return [PYTHON, '-m', 'dvc']

def surroundings(folder):
    return environment() | {'PYTHONPATH': str(folder), 'PYTHONUNBUFFERED': '1'}

def check(root, params_file):
    command = [PYTHON, '-c', CHECK, str(params_file)]
    done = subprocess.run(command, cwd=root, env=surroundings(root), capture_output=True, text=True)
    if done.returncode:
        raise WorkspaceError(done.stderr.strip())

def expected_s(stage):
    return SECONDS.get(stage.partition('@')[0], SECONDS_OTHER)

def minutes(seconds):
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'

class Clock:

    def __init__(self, stages, now=time.monotonic, foretells=True):
        self.foretells = foretells
        self.waiting = dict.fromkeys(stages)
        self.total = len(stages)
        self.ran = 0
        self.now = now
        self.begin_s = self.stage_s = now()
        self.present = None
        self.measured_s = self.planned_s = 0.0

    def start(self, stage, runs):
        self.finish()
        self.waiting.pop(stage, None)
        self.present = stage if runs else None
        self.ran += runs
        self.stage_s = self.now()
        place = f'[{self.total - len(self.waiting)}/{self.total}] {stage}'
        if not runs:
            return f'{place}: up to date'
        to_go = f', about {minutes(self.to_go_s())} to go' if self.foretells else ''
        return f'{place} | {minutes(self.now() - self.begin_s)} elapsed{to_go}'

    def finish(self):
        if self.present:
            self.measured_s += self.now() - self.stage_s
            self.planned_s += expected_s(self.present)
            self.present = None

    def to_go_s(self):
        pace = (self.measured_s + 120) / (self.planned_s + 120)
        left = sum(map(expected_s, self.waiting)) + (expected_s(self.present) if self.present else 0)
        return pace * left

def stage_names(folder, targets):
    command = [*dvc(), 'stage', 'list', '--name-only']
    listed = subprocess.run(command, cwd=folder, env=surroundings(folder), capture_output=True, text=True)
    if listed.returncode:
        raise WorkspaceError(f"dvc stage list: {' '.join(listed.stderr.split())}")
    return [name for name in listed.stdout.split() if not targets or name in targets]

def repro(folder, *arguments, targets=()):
    clock = Clock(stage_names(folder, targets), foretells=folder.name == 'quick')
    command = [*dvc(), 'repro', *arguments, *targets]
    with subprocess.Popen(command, cwd=folder, env=surroundings(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace') as process:
        try:
            for line in process.stdout:
                stage = STAGE.match(line)
                if stage:
                    print(clock.start(stage[2], runs=stage[1] == 'Running stage'), flush=True)
                elif line.strip() and (not line.startswith((*NOISE, '> '))):
                    print(f'    {line.rstrip()}', flush=True)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return 130
    seconds = clock.now() - clock.begin_s
    print(f'{minutes(seconds)} in all', flush=True)
    if process.returncode == 0 and clock.ran == clock.total and (not targets):
        note_minutes(folder, seconds, clock.total)
    return process.returncode

def note_minutes(folder, seconds, stages):
    (folder / 'minutes.json').write_text(json.dumps({'minutes': round(seconds / 60, 2), 'stages': stages}) + '\n')

def announce(folder):
    params = yaml.safe_load((folder / 'params.yaml').read_text())
    grid = params['grid']
    stages = stage_names(folder, ())
    expected_min = max(1, round(sum(map(expected_s, stages)) / 60))
    about = f'about {expected_min} minutes on 2 cores' if folder.name == 'quick' else '`--dry-run` tells how long,'
    print(f'workspace: {folder.name}/ (the committed results are not touched)')
    print(f"scale {params['scale']}: {', '.join(grid['environments'])}; seeds {', '.join(map(str, params['seeds']))}")
    print(f"methods: {', '.join([*grid['baselines'], *grid['lm_baselines'], *grid['variants']])}")
    print(f'{len(stages)} stages, {about} from scratch; stop and go on at any time', flush=True)

def profiles(root=ROOT):
    return sorted((path.parent.name for path in root.glob('profiles/*/params.yaml')))

def run(name, root=ROOT):
    params_file = root / 'profiles' / name / 'params.yaml'
    check(root, params_file)
    folder = prepare(name, params_file, root)
    announce(folder)
    code = repro(folder)
    if code:
        print(f'{name}: a stage failed or was stopped, see above; `make {name}` goes on from there', file=sys.stderr)
        return code
    claims = [PYTHON, '-m', 'ace.report.claims', folder.name]
    code = subprocess.run(claims, cwd=root, env=surroundings(root)).returncode
    print(f"\nAll of it lies in {folder.name}/results/. The committed results, at the laptop's scale, lie in results/.")
    return code

def dry_run(name, root=ROOT):
    params_file = root / 'profiles' / name / 'params.yaml'
    check(root, params_file)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copy_changed(root / 'dvc.yaml', folder / 'dvc.yaml')
        copy_changed(params_file, folder / 'params.yaml')
        subprocess.run([*dvc(), 'init', '-q', '--no-scm'], cwd=folder, env=surroundings(root), check=True)
        stages = stage_names(folder, ())
    kinds = Counter((stage.partition('@')[0] for stage in stages))
    beside_s = sum((expected_s(stage) for stage in stages if stage.partition('@')[0] not in CELLS))
    print(f'{name}/: {len(stages)} stages would run: ' + ', '.join((f'{n} {kind}' for kind, n in kinds.items())))
    if (root / name / 'dvc.lock').is_file():
        noted = yaml.safe_load((root / name / 'dvc.lock').read_text()).get('stages', {})
        print(f'{name}/dvc.lock notes {len(noted)} of them as run before: those whose inputs are the same are passed over')
    command = [PYTHON, '-m', 'ace.preflight', str(params_file), '--workspace', str(root / name)]
    command += ['--beside-s', str(beside_s)]
    sys.stdout.flush()
    return subprocess.run(command, cwd=root, env=surroundings(root)).returncode

def main(arguments=None):
    parser = argparse.ArgumentParser(prog='python -m ace.pipeline.workspace', description='Run in a folder of its own.')
    parser.add_argument('command', choices=[*profiles(), 'check'])
    parser.add_argument('--dry-run', action='store_true', help='only look whether all is there, and estimate the time')
    given = parser.parse_args(arguments)
    try:
        if given.command == 'check':
            return check(ROOT, ROOT / 'params.yaml') or 0
        return dry_run(given.command) if given.dry_run else run(given.command)
    except WorkspaceError as error:
        print(error, file=sys.stderr)
        return 1
if __name__ == '__main__':
    sys.exit(main())
