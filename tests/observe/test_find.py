"""Calls are found by who called whom and when, those that are over too."""

from __future__ import annotations

from click.testing import CliRunner

from shunt.cli.moment import Moment
from shunt.operator import dialogs as dialog_events
from shunt.operator.dialogs import Dialogs
from tests.tools.telling import Telling, ended_line

_EVER = (0.0, float("inf"))


class Told(Telling):
    """Events, and what is kept of them."""

    def __init__(self) -> None:
        super().__init__()
        self.dialogs = Dialogs()
        self.bus.subscribe(self.dialogs, dialog_events.KINDS)

    def found(self, text: str = "", since: float = 0.0, until: float = float("inf"), over: bool | None = None) -> list[str]:
        return [one.call_id for one in self.dialogs.search(text, since, until, over)]


def test_a_call_that_is_over_is_found_by_both_its_numbers() -> None:
    told = Told()
    told.conversation(packets=500, seconds=60)
    (found,) = told.dialogs.search("ALICE@", *_EVER, None)
    assert (found.call_id, found.answered, found.signalling.code, found.signalling.hung_up) == ("c1", True, 200, "callee")
    assert found.ended is not None and 60 < found.ended - found.began < 65
    assert told.found("bob@example") == ["c1"] == told.found("c1") and told.found("carol") == []


def test_by_time_and_by_whether_it_is_over() -> None:
    told = Told()
    told.conversation(packets=500, seconds=60)
    (found,) = told.dialogs.search("", *_EVER, None)
    assert found.ended is not None
    assert told.found(over=True) == ["c1"] and told.found(over=False) == []
    # It was there at any moment between.
    assert told.found(since=found.began + 30, until=found.began + 31) == ["c1"]
    assert told.found(since=found.ended + 1) == [] == told.found(until=found.began - 1)


def test_a_call_whose_media_ended_without_a_bye_is_over() -> None:
    told = Told()
    told.sip("INVITE", tags=("A", None))
    told.sip("200", tags=("A", "B"))
    assert told.found(over=False) == ["c1"]
    told.ended(ended_line())
    assert told.found(over=True) == ["c1"] and told.found(over=False) == []


def test_a_refused_call_is_over_until_another_branch_answers() -> None:
    told = Told()
    told.sip("INVITE", tags=("A", None))
    told.sip("486", tags=("A", "B"))
    (found,) = told.dialogs.search("", *_EVER, True)
    assert (found.answered, found.signalling.code) == (False, 486)
    told.sip("200", tags=("A", "C"))
    assert told.found(over=True) == [] and told.found(over=False) == ["c1"]


def test_a_time_before_now_or_a_date() -> None:
    moment = Moment()
    assert moment.convert("2h", None, None) == moment.convert("120m", None, None) == moment.convert("7200s", None, None)
    assert moment.convert("2026-11-25T14:30+00:00", None, None) == 1_795_617_000
    from shunt.cli.main import cli

    wrong = CliRunner().invoke(cli, ["find", "--since", "yesterday"])
    assert wrong.exit_code == 2 and "'yesterday' is neither a time before now" in wrong.output
