"""A double of what a script sees in bfshell: a tree of tables built from BF Runtime schemas, with bfrt_python's manners.

Parameter names depend on the method: the shortest endings of the fields' names, of one depth for all, that
keep key and data fields of that method apart. As in the published bfrtTable.py, a refused write raises BfRtTableError, a get that finds
nothing returns -1, and a value that cannot be parsed is printed and nothing happens; wrong names raise TypeError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

_OWN = ("pipe", "gress_dir", "prsr_id")


class BfRtTableError(Exception):
    """A write that the driver refused."""


class Entry:
    """A TableEntry: key, data and action as bfrt_python has them, names as bytes."""

    def __init__(self, key: dict[str, Any], data: dict[str, Any], action: str | None) -> None:
        self.key = {name.encode(): value for name, value in key.items()}
        self.data = {name.encode(): value for name, value in data.items()}
        self.action = action


def short_names(groups: Iterable[list[str]]) -> list[dict[str, str]]:
    """Parameter names of key fields and of data fields: endings of one depth, the least at which no two are equal."""
    groups = list(groups)
    for depth in range(1, 20):
        named = [{name: "_".join(name.replace("$", "").split(".")[-depth:]) for name in group} for group in groups]
        flat = [short for group in named for short in group.values()]
        if len(set(flat)) == len(flat):
            return named
    raise AssertionError(f"names that cannot be told apart: {groups}")


def _form(field: dict[str, Any], short: str) -> list[str]:
    return {"Ternary": [short, short + "_mask"], "LPM": [short, short + "_p_length"], "Range": [short + "_start", short + "_end"]}.get(field.get("match_type", "Exact"), [short])


class Leaf:
    """One table."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self.key_fields = {field["name"]: field for field in table["key"]}
        self.common = {field["singleton"]["name"]: field["singleton"] for field in table["data"] if "singleton" in field}
        self.actions = {action["name"]: action for action in table.get("action_specs") or ()}
        self.default = Entry({}, {}, next((name for name in self.actions if name.endswith(table.get("default", "\0"))), None))
        self.calls: list[str] = []
        self.refuse: Callable[[str, dict[str, Any], dict[str, Any]], str] = lambda verb, key, values: ""
        """A test's own reason to refuse a write (verb, key, data), as the driver words it."""
        keys = list(self.key_fields)
        self._add_method("get", keys, [], self._get, ("regex", "return_ents", "print_ents", "table", "from_hw", *_OWN, "handle"))
        self._add_method("delete", keys, [], self._delete, (*_OWN, "handle"))
        self._add_method("get_default", [], [], self._get_default, ("return_ent", "print_ent", "from_hw", *_OWN))
        if not self.actions:
            for verb in ("add", "mod", "entry"):
                self._add_method(verb, keys, list(self.common), self._writer(verb, None), _OWN)
        for name, action in self.actions.items():
            notes = {note["name"] for note in action.get("annotations") or ()}
            data = [field["name"] for field in action["data"]] + [name for name in self.common]
            word = name.rpartition(".")[2].replace("$", "")
            if "@defaultonly" not in notes:
                for verb in ("add", "mod", "entry"):
                    self._add_method(f"{verb}_with_{word}", keys, data, self._writer(verb, name), _OWN)
            if "@tableonly" not in notes:
                self._add_method(f"set_default_with_{word}", [], [field["name"] for field in action["data"]], self._writer("set_default", name), _OWN)

    def _add_method(self, name: str, keys: list[str], data: list[str], work: Callable[..., Any], own: tuple[str, ...]) -> None:
        key_names, data_names = short_names([keys, data])
        parameters: dict[str, tuple[str, int]] = {}
        for field, short in key_names.items():
            for place, parameter in enumerate(_form(self.key_fields[field], short)):
                parameters[parameter] = (field, place)
        for field, short in data_names.items():
            parameters[short] = (field, -1)

        def method(**given: Any) -> Any:
            strange = [parameter for parameter in given if parameter not in parameters and parameter not in own]
            if strange:
                raise TypeError(f"{name}() got an unexpected keyword argument '{strange[0]}'")
            self.calls.append(name)
            key: dict[str, Any] = {}
            values: dict[str, Any] = {}
            for parameter, (field, place) in parameters.items():
                if place < 0:
                    if parameter in given:
                        values[field] = given[parameter]
                elif self.key_fields[field].get("match_type", "Exact") == "Exact":
                    key[field] = given.get(parameter, 0)
                else:
                    key.setdefault(field, []).append(given.get(parameter, 0))
            return work(key, values, given)

        method.__name__ = name
        method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=None) for parameter in (*parameters, *own)]
        )
        setattr(self, name, method)

    def _writer(self, verb: str, action: str | None) -> Callable[..., Any]:
        def write(key: dict[str, Any], values: dict[str, Any], given: dict[str, Any]) -> Any:
            place = _frozen(key)
            for field, value in key.items():
                if self.key_fields[field]["type"]["type"] != "string" and not all(_is_number(part) for part in _parts(value)):
                    print(f"ERROR: Can`t parse key in {verb} function. Invalid key: {value}")
                    return None
            if problem := self._refused(verb, key, values, place):
                what = "set_default_entry" if verb == "set_default" else f"table_entry_{verb}"
                raise BfRtTableError(f"Error: {what} failed on table {self.table['name']}. [{problem}]")
            entry = Entry(key, values, action)
            if verb == "entry":
                return entry
            if verb == "set_default":
                self.default = entry
            elif verb == "mod":
                self.entries[place].data.update(entry.data)
                self.entries[place].action = action
            else:
                self.entries[place] = entry
            return None

        return write

    def _refused(self, verb: str, key: dict[str, Any], values: dict[str, Any], place: tuple[Any, ...]) -> str:
        if verb != "entry" and (reason := self.refuse(verb, key, values)):
            return reason
        if verb == "add" and place in self.entries:
            return "Already exists"
        if verb == "mod" and place not in self.entries:
            return "Object not found"
        if verb == "mod" and self.table["name"] == "$PORT" and {"$SPEED", "$FEC"} & values.keys():
            return "Invalid arguments"
        if verb == "add" and len(self.entries) >= self.table["size"]:
            return "No space"
        for name, field in {**self.common, **{f["name"]: f for a in self.actions.values() for f in a["data"]}}.items():
            choices = field["type"].get("choices")
            if name in values and choices and values[name] not in choices:
                return "Invalid arguments"
            width = field["type"].get("width")
            if name in values and width and isinstance(values[name], int) and values[name] >> width:
                return "Invalid arguments"
        for name, value in key.items():
            field = self.key_fields[name]
            width = field["type"].get("width")
            values_of = _parts(value)
            if width and any(isinstance(value, int) and value >> width for value in values_of[: 1 if field.get("match_type") == "LPM" else 2]):
                return "Invalid arguments"
        return ""

    def _get(self, key: dict[str, Any], values: dict[str, Any], given: dict[str, Any]) -> Any:
        entry = self.entries.get(_frozen(key))
        if entry is None:
            if given.get("print_ents", True):
                print(f"Error: table_entry_get failed on table {self.table['name']}. [Object not found]")
            return -1
        if given.get("print_ents", True):
            print(f"Entry data (action : {entry.action})")
        return entry

    def _delete(self, key: dict[str, Any], values: dict[str, Any], given: dict[str, Any]) -> None:
        reason = self.refuse("delete", key, {}) or ("" if _frozen(key) in self.entries else "Object not found")
        if reason:
            raise BfRtTableError(f"Error: table_entry_delete failed on table {self.table['name']}. [{reason}]")
        del self.entries[_frozen(key)]

    def _get_default(self, key: dict[str, Any], values: dict[str, Any], given: dict[str, Any]) -> Entry:
        return self.default

    def info(self, pipe: Any = None, return_info: bool = False, print_info: bool = True, from_hw: bool = False) -> dict[str, Any] | None:
        print()
        found = {"table_name": self.table["name"], "usage": len(self.entries), "capacity": self.table["size"]}
        return found if return_info else None

    def dump(self, table: bool = False, json: bool = False, from_hw: bool = False, return_ents: bool = False, print_zero: bool = True) -> list[Entry] | None:
        print(f"----- {self.table['name']} Dump Start -----")
        if not self.entries:
            print(f"Table {self.table['name']} has no entries.")
            return None
        return list(self.entries.values()) if return_ents else None


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    try:
        int(value)
    except (TypeError, ValueError):
        return False
    return True


def _frozen(key: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(key.items()))


class Node:
    """A node of the tree; what is not there raises AttributeError."""


def tree(program: str, *schemas: dict[str, Any]) -> Node:
    """The `bfrt` of a switch with these tables: '$' dropped and lower case for the fixed ones, below the program for its own."""
    root = Node()
    for schema in schemas:
        for table in schema["tables"]:
            name = table["name"]
            if name.startswith("$PORT"):
                path = ["port", name[1:].lower()]
            elif name.startswith("$"):
                path = name[1:].lower().split(".")
            else:
                path = [program, *name.split(".")]
            node = root
            for step in path[:-1]:
                if not hasattr(node, step):
                    setattr(node, step, Node())
                node = getattr(node, step)
            setattr(node, path[-1], Leaf(table))
    return root
