"""A pytest plugin that prints which test is about which case: ``pytest --collect-only -qq -p list_cases``.

Tests that are skipped or expected to fail prove nothing, and are left out.
"""

from __future__ import annotations

PROVES_NOTHING = ("skip", "skipif", "xfail")


def pytest_collection_finish(session):
    for item in session.items:
        if not any(item.get_closest_marker(name) for name in PROVES_NOTHING):
            for mark in item.iter_markers("case"):
                print(f"case {mark.args[0]} {item.nodeid}")
