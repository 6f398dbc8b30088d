import difflib
from pydantic import BaseModel, ConfigDict, ValidationError

class OneLine:

    def _render_traceback_(self):
        return [f'{type(self).__name__}: {self}']

class ConfigError(OneLine, ValueError):
    pass

class Model(BaseModel):
    model_config = ConfigDict(extra='forbid', frozen=True, strict=True, allow_inf_nan=False)

def validated(model, raw, prefix, source):
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e['type'] != 'extra_forbidden')
        place = '.'.join((str(part) for part in (*([prefix] if prefix else []), *first['loc'])))
        if first['type'] == 'extra_forbidden':
            known = _fields_at(model, first['loc'][:-1])
            message = f"{source}: {place}: no such parameter{meant(str(first['loc'][-1]), known)}"
        elif first['type'] == 'missing':
            message = f'{source}: {place}: is missing'
        else:
            message = f"{source}: {place} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
        more = error.error_count() - 1
        raise ConfigError(message + (f' (and {more} more)' if more else '')) from None

def _fields_at(model, location):
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if annotation and getattr(annotation, '__origin__', None) is dict:
            model = annotation.__args__[1]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return list(model.model_fields) if hasattr(model, 'model_fields') else []

def meant(given, known):
    known = list(known)
    close = difflib.get_close_matches(given, known, n=1)
    return f'; did you mean {close[0]!r}?' if close else f"; there are: {', '.join(known)}"
