import warnings
warnings.filterwarnings('ignore', message='Numba cannot be loaded')
warnings.filterwarnings('ignore', message='IProgress not found')
