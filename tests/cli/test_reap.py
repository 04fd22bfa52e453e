"""``reap``, and the claims that ``work`` takes back."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim, utc_now

from .conftest import Shell, add
from .films import Film, cut
from .shop import Message

MESSAGES = "tests.cli.shop:Message"


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    """Three unclaimed messages, the last of which has a single attempt."""
    add(engine, Message(recipient="a"), Message(recipient="b"))
    add(engine, Message(recipient="c", max_attempts=1))


def claim_as(engine: Engine, owner: str | Owner, limit: int = 3) -> None:
    with Session(engine) as session, session.begin():
        claim(session, Message, owner=owner, limit=limit)


@pytest.mark.usefixtures("jobs")
def test_reap_prints_the_owners_the_reasons_and_the_new_statuses(shell: Shell) -> None:
    with Owner(shell.engine, "victim") as owner:
        claim_as(shell.engine, owner)
        name = owner.name

    result = shell("reap", MESSAGES)

    assert result.exit_code == 0, result.output
    assert result.stdout == (
        f"3 of {name}: dead owner, 1 failed\n2 can be claimed again, 1 failed\n"
    )
    assert shell.read(Message.status) == ["unclaimed", "unclaimed", "failed"]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "nothing to reap\n"),
        (("--lease", 200), "nothing to reap\n"),
        (("--lease", 50), "1 of \ufffd]0;mailer: lease over\n1 can be claimed again, 0 failed\n"),
        (
            ("--max-runtime", 0),
            "1 of \ufffd]0;mailer: max_runtime over\n1 of nobody: max_",
        ),
    ],
)
def test_claims_of_others_are_left_alone_unless_an_option_says_so(
    shell: Shell, options: tuple[object, ...], said: str
) -> None:
    with shell.session() as session:
        claim(session, Message, owner="\x1b]0;mailer", limit=1)  # no command to the terminal
        past = utc_now(-100_000_000)
        session.execute(update(Message).where(Message.owner.is_not(None)).values(owner_date=past))
        by_hand = update(Message).where(Message.recipient == "b")
        session.execute(by_hand.values(status="claimed"))  # nobody has it
    with Owner(shell.engine) as owner:
        claim_as(shell.engine, owner, 1)

        result = shell("reap", MESSAGES, *options)

    assert (result.exit_code, result.stdout[: len(said)]) == (0, said)


def test_all_steps_of_a_workflow_are_reaped(shell: Shell) -> None:
    shell.add(Film(title="easy"))
    with shell.session() as session:
        cut.queue.claim(session, owner="gone")

    reaped = shell("reap", "tests.cli.films:workflow", "--max-runtime", 0)

    assert reaped.stdout == "1 of gone: max_runtime over\n1 can be claimed again, 0 failed\n"
