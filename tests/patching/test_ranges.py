"""Ranges of releases: what lies in them, what overlaps, what leaves a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from dspatch.errors import MatrixError
from dspatch.patching.ranges import Range, parse_version

RELEASES = st.builds("{}.{}".format, st.integers(0, 2), st.integers(0, 4))
WRITTEN = st.builds(">={},{}{}".format, RELEASES, st.sampled_from(["<", "<="]), RELEASES)


def try_range(text: str) -> Range | None:
    try:
        return Range.parse(text)
    except MatrixError:
        return None


@given(WRITTEN, RELEASES)
def test_means_what_packaging_means(text: str, release: str) -> None:
    found = try_range(text)
    expected = SpecifierSet(text)
    if found is None:
        assert release not in expected
    else:
        version = parse_version(release)
        assert (version in found) == (release in expected)
        assert [found.is_after(version), version in found, found.is_before(version)].count(True) == 1


@given(WRITTEN, WRITTEN)
def test_overlap_and_gap_are_about_releases(one: str, two: str) -> None:
    pair = [found for found in (try_range(one), try_range(two)) if found is not None]
    if len(pair) < 2:
        return
    earlier, later = sorted(pair, key=lambda found: found.first)
    steps = [
        parse_version(f"{major}.{minor}.{patch}") for major in range(3) for minor in range(6) for patch in range(2)
    ]
    both = [step for step in steps if step in earlier and step in later]
    if earlier.meets(later):
        assert not both
        assert all(step in earlier or step in later for step in steps if earlier.first <= step <= later.first)
    assert bool(both) == earlier.overlaps(later)


@pytest.mark.parametrize(
    "text", ["", ">=1.0", "<2.0", ">=1.0,<2.0,!=1.5", "~=1.0", ">=2.0,<1.0", ">=1,<1", ">=a,<b", "1.0"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(MatrixError):
        Range.parse(text)


def test_local_and_pre_releases() -> None:
    found = Range.parse(">=1.0,<=2.0")
    assert parse_version("2.0+abc") in found, "a build of the last release"
    assert parse_version("1.5rc1") in found
    assert parse_version("1.0rc1") not in found
    assert found.is_before(parse_version("2.0.1"))
