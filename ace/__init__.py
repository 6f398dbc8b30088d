"""ACE: a language model thinks twice for a reinforcement learner that then acts alone (arXiv 2506.02522), on power grids."""

import warnings

# Said at import by libraries about parts that are not used here: pandapower's speed, notebook widgets.
warnings.filterwarnings("ignore", message="Numba cannot be loaded")
warnings.filterwarnings("ignore", message="IProgress not found")
# peft 0.21 asks transformers 5 for an old name.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
