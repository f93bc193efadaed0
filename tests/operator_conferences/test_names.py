"""Names of participants in any script, and identifiers made of them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunt.operator.conferences import names
from shunt.operator.conferences.names import BadName
from tests.operator_conferences import samples

SCRIPTS = ["Zoë", "王小明", "Владимир", "שרה לוי", "محمد علی", "สมชาย", "さくら", "김민준", "अनिल", "Ἀριστοτέλης", "O'Brien, Ann", "👩‍🚀 Ann", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "می‌خواهم", "<b>Ann</b>", "+49 30 1234"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_name_in_any_script_stays_as_it_is(name: str) -> None:
    assert names.checked(name) == unicodedata.normalize("NFC", name)


def test_the_kept_form_is_nfc_without_spaces_around_it() -> None:
    assert names.checked(unicodedata.normalize("NFD", " Zoë Ångström\u00a0")) == "Zoë Ångström"


CONTROLS = [*map(chr, range(32)), *map(chr, range(127, 160)), "\u2028", "\u2029", "\ud800", "\udfff"]
DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(("characters", "said"), [(CONTROLS, "control character"), (DIRECTIONS, "direction of writing")])
def test_control_and_direction_characters_are_refused_at_every_place(characters: str, said: str) -> None:
    for character in characters:
        for text in (f"An{character}n", f"{character}Ann", f"Ann{character}"):
            with pytest.raises(BadName, match=said) as refused:
                names.checked(text)
            assert character not in str(refused.value), "the message itself is safe to show"


@pytest.mark.parametrize("text", ["", " ", "\u00a0", "\u200b", "\u200d\ufeff", "\u3164", "\u2800", "\u0301", "\U000e0067"])
def test_a_name_that_nobody_can_see_is_none(text: str) -> None:
    with pytest.raises(BadName, match="no visible character"):
        names.checked(text)


def test_64_characters_of_any_script_are_a_name_and_65_are_not() -> None:
    for character in ("a", "ë", "王", "👍"):
        assert names.checked(64 * character) == 64 * character
        with pytest.raises(BadName, match="65 characters, and may have 64"):
            names.checked(65 * character)
    assert names.checked(unicodedata.normalize("NFD", 64 * "é")) == 64 * "é", "they are counted after normalisation"


@pytest.mark.parametrize(
    ("text", "taken", "wanted"),
    [
        ("ann", (), "ann"), ("ann", ("ann", "ann-2"), "ann-3"), ("+49 30;x", (), "49_30_x"), ("...", (), "guest"), ("a" * 80, (), "a" * 50),
        ("Zoë", (), "Zoe"), ("Zoë", ("Zoe",), "Zoe-2"), ("王小明", (), "guest"), ("王 小明", ("guest",), "guest-2"), ("", (), "guest"),
    ],
)  # fmt: skip
def test_identifiers(text: str, taken: tuple[str, ...], wanted: str) -> None:
    assert names.identifier(text, taken) == wanted


@given(st.text(), st.sets(st.sampled_from(["guest", "guest-2", "a", "a-2"])))
def test_an_identifier_is_one_that_the_agent_takes_and_nobody_has(text: str, taken: set[str]) -> None:
    made = names.identifier(text, taken)
    assert names.is_identifier(made) and made not in taken


@given(st.text(max_size=70), st.lists(st.text(max_size=70), max_size=4))
def test_an_admitted_name_is_whole_and_nobody_elses(text: str, others: list[str]) -> None:
    room = samples.conference(*(samples.participant(f"p{number}", signalling={"name": other}) for number, other in enumerate(others)))
    try:
        found, name = names.admitted(room, text)
    except BadName:
        return
    assert names.checked(name) == name and name not in {names.shown(one) for one in room["members"]}
    assert names.is_identifier(found) and names.kept(found, {"name": name}) == name


def test_two_of_a_name_are_kept_apart_whatever_its_case_or_width() -> None:
    assert names.distinct("ZOË", {"Zoë"}) == "ZOË-2" and names.distinct("Ａnn", {"ann", "ANN-2"}) == "Ａnn-3"
    assert names.distinct(64 * "王", {64 * "王"}) == 62 * "王" + "-2"


@pytest.mark.parametrize("signalling", [None, {}, {"name": ""}, {"name": 5}, "text", {"format": 1, "sip": {}}])
def test_without_a_name_of_its_own_a_participant_is_called_by_its_identifier(signalling: object) -> None:
    assert names.shown(samples.participant("ann", signalling=signalling)) == "ann"


@pytest.mark.parametrize(
    ("header", "user", "wanted"),
    [
        ('"Zoë Müller" <sip:1001@h>;tag=1', "1001", ("Zoë Müller", "1001")),
        ('"Müller, Zoë \\"Z\\" <x>" <sip:1001@h>', "1001", ('Müller, Zoë "Z" <x>', "1001")),
        ("王小明 <sip:1001@h>", "1001", ("王小明", "1001")),
        ("sip:ann@h;tag=1", "ann", ("ann", "ann")),
        ('"" <sip:+4930@h>', "+4930", ("+4930", "+4930")),
        ("<sip:Zo%C3%AB@h>", "Zo%C3%AB", ("Zoë", "Zoë")),
        ('"An\u202en" <sip:bob@h>', "bob", ("bob", "bob")),
        (f'"{65 * "x"}" <sip:bob@h>', "bob", ("bob", "bob")),
        ("sip:h", None, ("anonymous", "anonymous")),
        ("<sip:%00@h>", "%00", ("anonymous", "\x00")),
    ],
)
def test_a_sip_caller_is_called_by_its_display_name_and_else_by_its_user_part(header: str, user: str | None, wanted: tuple[str, str]) -> None:
    assert names.caller(header, user) == wanted


@given(st.text(), st.none() | st.text())
def test_no_from_header_costs_a_call(header: str, user: str | None) -> None:
    name, part = names.caller(header, user)
    assert names.checked(name) == name and names.is_identifier(names.identifier(part, ()))


def test_a_log_has_both_where_they_differ() -> None:
    assert names.words("Zoe", "Zoë") == "Zoë (Zoe)" and names.words("ann", "ann") == "ann"
