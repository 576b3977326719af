"""What an open page is sent: each change once, whenever it arrives."""

from __future__ import annotations

import json

from penstock.dashboard.views import Facts, Views


def test_column_that_arrives_after_a_page_was_made_is_sent_with_the_next_version() -> None:
    facts, views = Facts("orders", "orders.yaml"), Views()
    facts.recent.add_column("2026-01-01T00:00:00+00:00", {"orders": [10]}, {"orders": [0]})
    assert views.send(facts, None) is not None
    facts.recent.add_column("2026-01-01T00:00:01+00:00", {"orders": [17]}, {"orders": [0]})
    # Within the age of what is made already, a second page is sent the same: the first column alone.
    page = views.send(facts, None)
    assert page is not None
    assert json.loads(page.text)["heat"]["columns"] == [[10]]
    views._made_at = 0.0
    news = views.send(facts, page)
    assert news is not None
    assert json.loads(news.text)["heat"]["columns"] == [[17]]
