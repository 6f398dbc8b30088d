# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
from ace.config import load
from ace.diagnosis import diagnose
sizes = load().diagnosis
table = diagnose(environment, **sizes.model_dump(), output=output)
