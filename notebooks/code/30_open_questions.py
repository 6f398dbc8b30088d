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
display(Markdown((results / 'tables' / 'open_questions.md').read_text(encoding='utf-8')))

# %%
Image(results / 'figures' / 'open_questions.png', width=860)

# %%
answers = table[['id', 'answer']].drop_duplicates()
chosen = answers[(answers['id'] == question) | (question == '')]
display(Markdown('\n'.join((f'- **{row.id}** {row.answer}' for row in chosen.itertuples()))))
