"""Renders template_twins.json's cases with Python's Jinja2 (3.1) as Hugging Face's apply_chat_template does, and
writes the results into it: `python template_twins.py`. Only `expect` and `error` of each case change."""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
environment.filters["tojson"] = tojson
environment.filters["fromjson"] = json.loads
environment.globals["raise_exception"] = raise_exception

path = pathlib.Path(__file__).with_name("template_twins.json")
data = json.loads(path.read_text(encoding="utf-8"))
for case in data["cases"]:
    case.pop("expect", None)
    case.pop("error", None)
    try:
        case["expect"] = environment.from_string(data["templates"][case["template"]]).render(
            messages=data["messages"][case["messages"]],
            tools=data["tools"] if case["tools"] else None,
            documents=None,
            add_generation_prompt=case["add_generation_prompt"],
            bos_token="<s>",
            eos_token="</s>",
        )
    except Exception as error:
        case["error"] = str(error)
path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
