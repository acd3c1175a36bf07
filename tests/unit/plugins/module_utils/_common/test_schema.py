"""The one reader of what people write, and the schema of an inventory."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import schema
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.schema import NUMBER, Key
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.validation import Problems
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import VARIABLES
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE

KEYS = {
    "port": Key(int, 4000, "TCP port", least=1, most=65535),
    "seconds": Key(NUMBER, 10, "how long", least=0, unit="seconds"),
    "show": Key(str, "auto", "how it is shown", choices=("auto", "table", "none")),
    "kinds": Key(list, [], "what", choices=("images", "models")),
    "names": Key((str, list), "", "which"),
    "on": Key((bool, dict), True, "whether"),
    "env": Key(dict, {}, "variables"),
}
NESTED = {
    "name": Key(str, None, "what it is called", required=True, form=str.islower, like="lower-case letters"),
    "share": Key(NUMBER, None, "part of it", above=0, most=1),
    "to": Key(
        dict, {}, "where", of={"url": Key(str, "", "address", form=str.isascii, like="ASCII"), "port": KEYS["port"]}
    ),
    "words": Key(list, [], "words", of=Key(str, None, "a word", form=str.isalpha, like="a word")),
    "parts": Key(list, [], "parts", of={"name": Key(str, None, "of the part", required=True), "port": KEYS["port"]}),
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prot": 1}, "unknown key 'prot'; did you mean 'port'? Known: port, seconds, show, kinds, names, on, env."),
        ({"port": "4000"}, "'port' is a text; it must be a whole number from 1 to 65535. Write it without quotes."),
        ({"port": True}, "'port' is a boolean; it must be a whole number from 1 to 65535."),
        ({"port": 0}, "'port' is 0; it must be a whole number from 1 to 65535."),
        ({"port": 1.5}, "'port' is 1.5; it must be a whole number from 1 to 65535."),
        ({"seconds": -1}, "'seconds' is -1; it must be a number of seconds, 0 or more."),
        ({"seconds": float("nan")}, "'seconds' is nan; it must be a number of seconds, 0 or more."),
        ({"seconds": float("inf")}, "'seconds' is inf; it must be a number of seconds, 0 or more."),
        ({"show": "tabel"}, "'show' is 'tabel'; did you mean 'table'? It must be auto, table or none."),
        ({"show": "x"}, "'show' is 'x'; it must be auto, table or none."),
        ({"show": 3}, "'show' is a number; it must be auto, table or none."),
        (
            {"kinds": ["images", "modles"]},
            "'kinds' contains 'modles'; did you mean 'models'? Its entries must be images or models.",
        ),
        ({"names": 3}, "'names' is a number; it must be a text or a list."),
        ({"on": "yes"}, "'on' is a text; it must be a boolean or a mapping."),
        ({"env": []}, "'env' is a list; it must be a mapping. Write NAME: VALUE on a line each, without dashes."),
    ],
)
def test_what_is_wrong_is_said_and_replaced_by_the_default(values: dict[str, Any], message: str) -> None:
    problems = Problems("host a, spark_x")
    assert schema.filled(problems, values, KEYS) == schema.defaults(KEYS)
    assert problems.messages == [f"host a, spark_x: {message}"]


def test_what_is_right_is_taken() -> None:
    problems = Problems("x")
    values = {"port": 1, "seconds": 0.5, "show": "none", "kinds": ["models"], "names": "a", "on": {}, "env": {"A": 1}}
    assert schema.filled(problems, values, KEYS) == values
    assert schema.filled(problems, dict.fromkeys(KEYS), KEYS) == schema.defaults(KEYS)
    assert problems.messages == []


def test_defaults_and_values_are_copies() -> None:
    values = {"kinds": ["images"]}
    first = schema.filled(Problems("x"), values, KEYS)
    first["kinds"].append("models")
    first["env"]["A"] = 1
    assert values == {"kinds": ["images"]}
    assert schema.defaults(KEYS)["env"] == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'name' is missing: what it is called."),
        ({"name": ""}, "'name' is missing: what it is called."),
        ({"name": "A"}, "'name' is 'A'; it must be lower-case letters."),
        ({"name": 5}, "'name' is a number; it must be lower-case letters."),
        ({"name": "a", "share": 0}, "'share' is 0; it must be a number above 0, at most 1."),
        ({"name": "a", "to": {"url": "ä"}}, "'to.url' is 'ä'; it must be ASCII."),
        ({"name": "a", "to": {"prt": 1}}, "unknown key of to: 'prt'; did you mean 'port'? Known: url, port."),
        ({"name": "a", "words": ["b", "c d"]}, "'words[1]' is 'c d'; it must be a word."),
        (
            {"name": "a", "parts": ["b"]},
            "'parts[0]' is a text; it must be a mapping. Write NAME: VALUE on a line each, without dashes.",
        ),
        ({"name": "a", "parts": [{"name": "b"}, {"port": 1}]}, "'parts[1].name' is missing: of the part."),
        (
            {"name": "a", "parts": [{"name": "b"}, {"name": "b"}]},
            "'parts[1].name' is 'b'; another entry has that name.",
        ),
    ],
)
def test_what_is_wrong_below_a_key_is_said_with_its_place(values: dict[str, Any], message: str) -> None:
    problems = Problems("x")
    schema.filled(problems, values, NESTED)
    assert problems.messages == [f"x: {message}"]


def test_keys_below_a_key_have_their_defaults_where_all_are_wanted() -> None:
    values = {"name": "a", "to": {"url": None}, "parts": [{"name": "b"}], "words": ["c"]}
    filled = schema.filled(Problems("x"), values, NESTED)
    assert filled["to"] == {"url": "", "port": 4000} and filled["parts"] == [{"name": "b", "port": 4000}]
    assert schema.read(Problems("x"), values, NESTED) == {
        "name": "a",
        "to": {},
        "parts": [{"name": "b"}],
        "words": ["c"],
    }
    assert schema.read(Problems("x"), values, NESTED, nulls=True)["to"] == {"url": None}
    assert schema.filled(Problems("x"), {"name": "a"}, NESTED)["to"] == {}, "what is left out is left out as a whole"


def test_part_of_the_keys_below_another_one() -> None:
    problems = Problems("host a")
    assert schema.read(problems, {"port": 0, "show": "auto"}, KEYS, "services.heavy.", ("port", "seconds")) == {}
    assert problems.messages == [
        "host a: unknown key of services.heavy: 'show'. Known: port, seconds.",
        "host a: 'services.heavy.port' is 0; it must be a whole number from 1 to 65535.",
    ]


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        (bool, "true", True),
        (bool, " No ", False),
        (bool, "maybe", "maybe"),
        ((bool, dict), "yes", True),
        (int, "3", 3),
        (int, "3.5", "3.5"),
        (int, "-3", -3),
        (bool, "1", True),
        (bool, "off", False),
        (NUMBER, "3.5", 3.5),
        (str, "3", "3"),
        ((int, str), "25", "25"),
        (list, "a", "a"),
    ],
)
def test_what_the_command_line_means(types: Any, text: str, value: Any) -> None:
    parsed = schema.from_command_line(Key(types, None, "x"), text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize("name", VARIABLES)
def test_variable(name: str) -> None:
    key = VARIABLES[name]
    assert name.startswith("spark_")
    assert key.default is None or schema.wrong(key, key.default) == "", "the default is what may be written"
    assert key.meaning and not key.meaning.endswith("."), "one line without a full stop"
    assert "|" not in key.meaning and "\n" not in key.meaning, "it would end the cell of its table"
    for choice in key.choices:
        assert choice in key.meaning, f"the meaning does not say what {choice} is"


@pytest.mark.parametrize("name", SERVICE)
def test_key_of_a_service(name: str) -> None:
    key = SERVICE[name]
    assert key.default is None or schema.wrong(key, key.default) == ""
    assert "|" not in key.meaning and "\n" not in key.meaning
