# %% [parameters]
environment = 'wcci2020'
labels = [50, 100, 200, 400, 800]
steps = 400
decisions = 600
states = 150
seeds = 2
output = 'scratch'

# %%
from ace.diagnosis import diagnose
table = diagnose(environment, labels, steps, decisions, states, seeds, output)
