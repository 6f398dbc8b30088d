from contextlib import contextmanager
import matplotlib as mpl
import seaborn as sns
LINES = {'do_nothing': ('#000000', (0, (1, 2)), 'X'), 'reconnect': ('#5a5a5a', (0, (5, 2)), 'p'), 'greedy': ('#8c8c8c', (0, (7, 2, 1, 2)), '*'), 'sac': ('#d55e00', '--', 's'), 'ace': ('#0072b2', '-', 'o'), 'ace_no_actor': ('#56b4e9', '-.', '^'), 'ace_no_critic': ('#009e73', ':', 'D'), 'dc_argmin': ('#cc79a7', '-', 'v'), 'llm_only': ('#e69f00', '--', 'P'), 'ace_literal': ('#5b3a8e', '-.', '<'), 'expert_sac': ('#7a4a12', ':', '>'), 'random_refine': ('#999933', (0, (3, 1, 1, 1)), 'd'), 'frequency_refine': ('#882255', (0, (4, 1)), 'h'), 'llm4teach': ('#44aa99', (0, (2, 1)), '8'), 'sac_5k': ('#ee8866', (0, (6, 1)), 's'), 'ace_lean': ('#332288', (0, (8, 1, 1, 1)), 'o'), 'ace_elsewhere': ('#117733', (0, (5, 1, 1, 1)), 'h')}
MORE_LINES = [('#cc79a7', '-', 'v'), ('#e69f00', '--', 'P'), ('#5b3a8e', '-.', '<'), ('#7a4a12', ':', '>')]
METADATA = {'png': {'Software': None}, 'svg': {'Date': None, 'Creator': None}, 'pdf': {'CreationDate': None, 'Creator': None, 'Producer': None}}

def lines(variants):
    unknown = [variant for variant in variants if variant not in LINES]
    spare = {variant: MORE_LINES[i % len(MORE_LINES)] for i, variant in enumerate(unknown)}
    return {variant: LINES.get(variant) or spare[variant] for variant in variants}

@contextmanager
def theme():
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(sns.axes_style('whitegrid'))
        mpl.rcParams.update(sns.plotting_context('paper', font_scale=1.1))
        mpl.rcParams.update({'font.family': ['DejaVu Sans'], 'grid.color': '#e3e3e3', 'axes.edgecolor': '#888888', 'svg.hashsalt': 'ace', 'svg.fonttype': 'path', 'savefig.dpi': 160})
        yield

def save(figure, folder, name, formats=('png', 'svg', 'pdf')):
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f'{name}.{kind}' for kind in formats]
    for path, kind in zip(paths, formats, strict=True):
        figure.savefig(path, format=kind, metadata=METADATA[kind], bbox_inches='tight', facecolor='white')
    return paths
