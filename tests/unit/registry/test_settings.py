from __future__ import annotations

import pickle
import threading

from penstock.registry import RegistrySettings, client_of
from penstock.registry.client import Recent

SECRET = RegistrySettings("https://u:sesame@host:8081/api/", username="u", password="sesame", token="sesame")


def test_settings_show_no_secret() -> None:
    assert "sesame" not in f"{SECRET!r} {SECRET} {SECRET.address} {SECRET.credentials}"
    assert SECRET.address == "https://host:8081/api"


def test_settings_sent_to_a_task_are_the_same_key() -> None:
    sent = pickle.loads(pickle.dumps(SECRET))
    assert sent == SECRET
    assert client_of(sent) is client_of(SECRET)
    assert client_of(RegistrySettings(SECRET.url)) is not client_of(SECRET)


def test_recent_lets_go_of_what_was_used_longest_ago() -> None:
    recent: Recent[int, str] = Recent(2)
    recent.keep(1, "one")
    recent.keep(2, "two")
    assert recent.get(1) == "one"
    recent.keep(3, "three")
    assert [recent.get(key) for key in (1, 2, 3)] == ["one", None, "three"]


def test_recent_used_by_many_threads_stays_within_its_limit() -> None:
    recent: Recent[int, int] = Recent(10)

    def use(first: int) -> None:
        for key in range(first, first + 2000):
            recent.keep(key, key)
            recent.get(key - 5)

    threads = [threading.Thread(target=use, args=(number * 1000,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recent._entries) == 10
