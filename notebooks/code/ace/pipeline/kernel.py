import logging
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.localinterfaces import localhost
from jupyter_client.manager import AsyncKernelManager
from traitlets import default
PACKAGE_HOME = Path(__file__).resolve().parents[2]
PYTHON = os.path.abspath(sys.executable)
PREFIX = os.path.abspath(sys.prefix)
POLL_S = 1.0
SETTINGS = {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1', 'NUMEXPR_NUM_THREADS': '1', 'TOKENIZERS_PARALLELISM': 'false', 'PYTHONHASHSEED': '0', 'SOURCE_DATE_EPOCH': '0', 'DVC_NO_ANALYTICS': '1', 'JUPYTER_PREFER_ENV_PATH': '1'}
SETTINGS_X86 = {'ATEN_CPU_CAPABILITY': 'avx2', 'MKL_CBWR': 'AVX2', 'ONEDNN_MAX_CPU_ISA': 'AVX2', 'OPENBLAS_CORETYPE': 'Haswell', 'NPY_DISABLE_CPU_FEATURES': 'X86_V4 AVX512_ICL AVX512_SPR'}
DEFAULTS = {'HF_HUB_OFFLINE': '1'}

def environment():
    env = {**DEFAULTS, **os.environ, **SETTINGS}
    if platform.machine().lower() in {'x86_64', 'amd64'}:
        env |= SETTINGS_X86
    env['PYTHONPATH'] = str(PACKAGE_HOME)
    env['PATH'] = os.pathsep.join([os.path.dirname(PYTHON), env.get('PATH', os.defpath)])
    return env

class OwnKernel(AsyncKernelManager):
    groups: set[int] = set()

    @default('transport')
    def _transport(self):
        return 'ipc' if os.name == 'posix' else 'tcp'

    @default('ip')
    def _own_ip(self):
        if self.transport != 'ipc':
            return localhost()
        self.sockets = tempfile.TemporaryDirectory(prefix='ace-kernel-')
        return str(Path(self.sockets.name) / 'socket')

    @property
    def kernel_spec(self):
        command = [PYTHON, '-m', 'ace.pipeline.kernel', '-f', '{connection_file}']
        return KernelSpec(argv=command, display_name='Python 3', language='python')

    async def start_kernel(self, **kwargs):
        await super().start_kernel(**kwargs | {'env': environment()})
        self.groups.add(self.provisioner.pgid)

    @classmethod
    def kill_groups(cls):
        while cls.groups:
            group = cls.groups.pop()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

def when_orphaned(act):
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(POLL_S)
        act()
    threading.Thread(target=watch, daemon=True, name='watch parent').start()

def main():
    os.environ['JPY_PARENT_PID'] = '1'
    if os.getpgrp() == os.getpid():
        when_orphaned(lambda: os.killpg(0, signal.SIGKILL))
    from ipykernel.kernelapp import launch_new_instance
    if sys.path[0] == '':
        del sys.path[0]
    launch_new_instance(log_level=logging.CRITICAL)
if __name__ == '__main__':
    main()
