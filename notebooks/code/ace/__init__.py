import warnings
warnings.filterwarnings('ignore', message='Numba cannot be loaded')
warnings.filterwarnings('ignore', message='IProgress not found')
warnings.filterwarnings('ignore', message='`is_gradient_checkpointing` is deprecated')
