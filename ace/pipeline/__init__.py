import sys

# nbformat, by way of jsonschema, builds a grammar for international web addresses with each start: two seconds in every
# stage, for a check that no notebook needs. jsonschema does without the package where it can't be imported.
sys.modules.setdefault("rfc3987_syntax", None)
