import sys
from collections import Counter
from pathlib import Path
from textwrap import shorten
from unicodedata import combining
from ace.report.measure import VERDICTS
from ace.report.runs import ReportError
from ace.report.typeset import markdown, number
START, END = ('<!-- claims:start -->', '<!-- claims:end -->')

def ours(row):
    value, low, high = (_short(end) for end in (row.measured, row.ci_low, row.ci_high))
    return f"{value}{(f' [{low}, {high}]' if low else '')} {row.unit}" if value else '–'

def _short(value):
    return f'{value:,.0f}' if abs(value) >= 1000 else number(float(f'{value:.3g}'))

def summary_line(table):
    counts = Counter(table['verdict'])
    return ', '.join((f'{counts[verdict]} {verdict}' for verdict in VERDICTS)) + '.'

def sentences(table):
    lines = []
    for row in table.itertuples():
        found = f'measured {ours(row)} (n: {row.n})' if row.n else row.evidence
        reported = f'the paper reports {row.paper_value}'
        lines.append(f'- **{row.id}** {row.claim}: {reported}; {found}. Scale {row.scale}: **{row.verdict}**.')
    return '\n'.join(lines)

def full_markdown(table):
    head = ['Id', 'Claim', 'Paper', 'Ours [95 %]', 'n', 'Verdict', 'Criterion', 'Evidence', 'Source']
    rows = [[row.id, row.claim, row.paper_value, ours(row), row.n, row.verdict, row.criterion, row.evidence, row.source] for row in table.itertuples()]
    return markdown(head, rows)

def readme_table(table):
    head = ['Paper item', 'Notebook', 'Stage', 'Reported', 'Ours [95 %] (n)', 'Verdict']
    rows = []
    for row in table.itertuples():
        item = [f'{row.id} {row.claim}', f'`{row.notebook}`', f'`{row.stage}`', row.paper_value]
        rows.append([*item, f'{ours(row)} ({row.n})' if row.n else _reason(row), row.verdict])
    scale = ', '.join(dict.fromkeys(table['scale']))
    return f'Scale `{scale}`: {summary_line(table)}\n\n{markdown(head, rows)}'

def _reason(row):
    return row.evidence.removeprefix('not tested: ').split('; ')[0]

def update_readme(readme, table):
    text = Path(readme).read_text(encoding='utf-8')
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ReportError(f'{Path(readme).name} needs {START} and, after it, {END}, once each')
    before, after = (text.split(START)[0], text.split(END)[1])
    fresh = f'{before}{START}\n{readme_table(table)}{END}{after}'
    if fresh != text:
        Path(readme).write_text(fresh, encoding='utf-8', newline='\n')
    return fresh != text

def readme_is_stale(readme, table):
    text = Path(readme).read_text(encoding='utf-8')
    if f'{START}\n{readme_table(table)}{END}' in text:
        return None
    return f'{Path(readme).name} does not show results/claims.csv: run `python -m ace.report.claims --readme`'

def print_claims(table, file=None):
    file = file or sys.stdout
    widths = (4, 40, 24, 35, 14)
    for line in [('id', 'claim', 'paper', 'ours [95 %]', 'verdict'), *_terminal_rows(table)]:
        cells = [_fitted(cell, width) for cell, width in zip(line, widths, strict=True)]
        print(' '.join(cells).rstrip(), file=file)
    scales = ', '.join(dict.fromkeys(table['scale']))
    print(f'\n{summary_line(table)} Scale: {scales}.', file=file)
    if scales == 'quick':
        print('This scale shows that all of it runs; it is too small to judge a claim.', file=file)

def _fitted(text, width):
    text = shorten(text, width, placeholder='…')
    return text.ljust(width + sum(map(bool, map(combining, text))))

def _terminal_rows(table):
    return [(row.id, row.claim, row.paper_value, ours(row), row.verdict) for row in table.itertuples()]
