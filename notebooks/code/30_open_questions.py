# %% [parameters]
question = ''

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import ablation_figures, questions
params = load()
results = root() / 'results'
table = questions.write(params, results)
drawn = ablation_figures.open_questions(table, results)
display(Markdown(questions.answered(table, question)))

# %%
Image(results / 'figures' / 'open_questions.png', width=860)

# %%
display(Markdown(questions.contrasts(results)))
