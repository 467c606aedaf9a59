"""`make near` finds the tests of a changed file: those that import it, bear its name, or drive it through a server."""

import pytest

from tests.support.near import nearest


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("server/http/sse.py", "tests/unit/http/test_sse.py"),
        ("pipelines/images/scheduling/fairness.py", "tests/unit/engine/test_fairness.py"),
        ("server/flows/images/idempotency.py", "tests/e2e/test_retries.py"),
        ("server/console/app.js", "tests/e2e/test_console.py"),
        ("tests/unit/test_near.py", "tests/unit/test_near.py"),
    ],
)
def test_the_tests_of_a_changed_file_are_near_it(changed: str, expected: str) -> None:
    chosen = nearest([changed])
    assert expected in chosen
    assert len(chosen) <= 17
