"""The machine: processors, memory, a GPU where the weights need one, room on the disk.

What weights take is read off their config. What a LoRA round takes is reckoned, and says so: no 7B model was tuned here.
"""

import os
import shutil
from pathlib import Path

import torch

from ace import config
from ace.llm.finetune import LORA_BATCH
from ace.preflight.language import config_of, source_of, weights_gb
from ace.preflight.plan import fail, note, ok

GB = 1e9
PROCESS_GB = 1.5
"""Of one process with its world, learner and buffers: `run_peak_gb` in results/benchmarks.csv."""
RESULTS_GB = 1.0
"""Run files, transcripts and notebooks; the committed ones of the laptop scale take less."""
NEEDS_GPU_GB = 4.0
"""Heavier weights answer too slowly on processors for thousands of questions."""
SAMPLE_TOKENS = 450
"""Of a LoRA sample as a 7B model's tokenizer counts it; our reckoning."""


def findings(cells, workspace, pooled=False):
    """Processors, memory, GPU and disk.

    workspace: the folder, which need not exist, that the scale runs in; pooled: all cells run at once (a campaign), not one after
    the other.
    """
    try:
        jobs = config.jobs()
    except config.ConfigError as error:
        yield fail("processes", str(error))
        jobs = os.cpu_count() or 1
    numbers = [len(cell.seeds) for cell in cells]
    jobs = min(jobs, sum(numbers) if pooled else max(numbers))
    yield ok("processors", f"{os.cpu_count()}, of them used {jobs} (ACE_JOBS)")
    asking = [cell for cell in cells if cell.settings.uses_llm]
    sizes = [(_weights(cell, workspace), cell) for cell in asking]
    heaviest = max((size for size, _ in sizes), default=0.0)
    holding = [len(cell.seeds) for size, cell in sizes if size]
    copies = min(jobs, sum(holding) if pooled else max(holding, default=0))
    tuned = max((size for size, cell in sizes if cell.tunes), default=0.0)
    on_gpu = torch.cuda.is_available() or heaviest > NEEDS_GPU_GB  # where there must be one, what else is needed
    on_processors = 0.0 if on_gpu else copies * (2 * tuned if tuned else heaviest)
    # On its way to a GPU a model is read into memory once for each process.
    yield _memory(jobs * PROCESS_GB + (copies * heaviest if on_gpu else on_processors))
    for source in sorted({source_of(cell, workspace) for cell in asking if _weights(cell, workspace)}):
        size, read_from = weights_gb(source)
        yield (note if read_from == "its name" else ok)("weights", f"{source}: {size:.1f} GB in memory, by {read_from}")
    if heaviest:
        yield from _gpu(heaviest, tuned, copies, _activations(cells, workspace) if tuned else 0.0)
    yield _disk(cells, workspace, jobs)


def _weights(cell, workspace):
    """GB of a checkpoint that is loaded for this cell, 0 for other clients."""
    return weights_gb(source_of(cell, workspace))[0] if cell.settings.llm.client == "checkpoint" else 0.0


def _activations(cells, workspace):
    """GB that a LoRA round keeps for its backward pass, over one batch: reckoned from the widths of the layers.

    Of a token the input of each layer, and of one layer, computed again at its turn, about 8 vectors as wide as the model and 4
    as wide as its MLP, in two bytes.
    """
    most = 0.0
    for cell in cells:
        if cell.tunes and cell.settings.llm.client == "checkpoint":
            c = config_of(source_of(cell, workspace))
            layers, width, wide = (getattr(c, name, 0) for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
            most = max(most, LORA_BATCH * SAMPLE_TOKENS * 2 * (layers * width + 8 * width + 4 * wide) / GB)
    return most


def _memory(needed):
    free = _available_gb()
    text = f"{free:.0f} GB available, about {needed:.0f} GB needed"
    if free < needed:
        return fail("memory", f"{text}: set ACE_JOBS=1, or take a larger machine")
    return ok("memory", text)


def _available_gb():
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (found[0] if found else total) / GB


def _gpu(heaviest, tuned, copies, activations):
    if not torch.cuda.is_available():
        cure = "run on a machine with one, take a smaller model, or ask a server"
        heavy = heaviest > NEEDS_GPU_GB
        yield (
            fail("GPU", f"none, and weights of {heaviest:.1f} GB: {cure}") if heavy else note("GPU", "none: not needed")
        )
        return
    free = torch.cuda.mem_get_info()[0] / GB
    name = torch.cuda.get_device_name()
    # A round keeps the weights as they were until the new ones have proved as good.
    least = copies * (2 * tuned if tuned else heaviest)
    text = f"{name}, {free:.0f} GB free; {copies} processes with {heaviest:.1f} GB of weights"
    text += ", twice that while LoRA tunes a copy" if tuned else ""
    if free < least:
        cure = "set ACE_JOBS=1, a smaller model, or finetune: {enabled: false}"
        yield fail("GPU", f"{text}, {least:.0f} GB in all: {cure}")
    elif free < least + activations:
        more = f"{activations:.0f} GB for a LoRA round's {LORA_BATCH} samples at once"
        yield note("GPU", f"{text}, and about {more} (reckoned, not measured): a round may not fit")
    else:
        yield ok("GPU", text)


def _disk(cells, workspace, jobs):
    """After a LoRA round a checkpoint holds all weights, and those of a cell's seeds stay until the cell is done."""
    kept = [cell for cell in cells if cell.tunes]
    states = [(len(cell.seeds) + min(jobs, len(cell.seeds))) * _weights(cell, workspace) for cell in kept]
    heavy = max(states, default=0.0)
    place = next(folder for folder in (workspace, *workspace.parents) if folder.is_dir())
    free = shutil.disk_usage(place).free / GB
    text = f"{free:.0f} GB free, about {RESULTS_GB + heavy:.0f} GB needed"
    text += f", {heavy:.0f} GB of them for training states that hold the tuned weights whole" if heavy >= 1 else ""
    if free < RESULTS_GB + heavy:
        return fail("disk", f"{text}: make room, or set finetune: {{enabled: false}}")
    return ok("disk", text)
