"""The checker catches every mutant of the library, and finds nothing in the library itself."""

from __future__ import annotations

import pytest

from tests.docs.markdown import page, table
from tests.evidence.bench import Bench
from tests.evidence.conftest import CLASSES
from tests.evidence.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "mutant"])
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_found_by_its_rule_and_in_the_sound_library_nothing(
    bench: Bench, mutant: Mutant, sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.recording(*CLASSES):
        if not sound:
            mutant.breaks(monkeypatch)
        mutant.drive(bench)

    faults = bench.faults(drained=mutant.drained)
    stories = "\n".join(line for fault in faults for line in fault.story())
    assert {fault.rule for fault in faults} == (set() if sound else {mutant.rule}), stories


def test_the_page_lists_every_mutant_with_its_rule() -> None:
    listed = table(page("docs/internals/evidence.md"), "mutant")

    assert [(line["mutant"], line["rule"]) for line in listed] == [
        (mutant.name, mutant.rule) for mutant in MUTANTS
    ]
