import math
from pathlib import Path
import numpy as np
import pandas as pd

def number(value):
    if value is None or value is pd.NA:
        return ''
    if isinstance(value, (str, int, np.integer)):
        return str(value)
    if not math.isfinite(value):
        return ''
    text = np.format_float_positional(float(value), precision=6, unique=False, fractional=False, trim='-')
    return '0' if text in ('-0', '0') else text

def write_csv(table, path):
    text = table.astype(object).map(number).to_csv(index=False, lineterminator='\n')
    write_text(path, text)

def markdown(head, rows):
    lines = [head, ['---'] * len(head), *rows]
    return ''.join(('| ' + ' | '.join((cell.replace('|', '\\|') for cell in line)) + ' |\n' for line in lines))

def latex(head, rows, caption):
    body = [' & '.join((_tex(cell) for cell in row)) + ' \\\\\n' for row in [head, *rows]]
    columns = 'll' + 'r' * (len(head) - 2)
    return f"% {caption}; needs booktabs\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body[0]}\\midrule\n{''.join(body[1:])}\\bottomrule\n\\end{{tabular}}\n"

def with_interval(value, low, high, digits, sign=''):
    if math.isnan(value):
        return ''
    ends = '' if math.isnan(low) else f' [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]'
    return f'{value:{sign}.{digits}f}{ends}'

def thousands(value):
    return f'{round(value):,}' if math.isfinite(value) else '–'

def _tex(cell):
    for plain, command in (('%', '\\%'), ('_', '\\_'), ('±', '$\\pm$'), (' x ', ' $\\times$ ')):
        cell = cell.replace(plain, command)
    return cell

def write_table(results, name, table, head, rows, title, note):
    folder = Path(results) / 'tables'
    write_csv(table, folder / f'{name}.csv')
    write_text(folder / f'{name}.md', f'# {title}\n\n{markdown(head, rows)}\n{note}\n')
    write_text(folder / f'{name}.tex', latex(head, rows, title))

def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8', newline='\n')
