"""The page of the dashboard in a real browser, over pipelines that are made of files: no broker, no JVM."""

from __future__ import annotations

import json
import re
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from playwright.sync_api import expect
from tests.unit.dashboard import pipelines as made

from penstock.checkpoint.lock import checkpoint_lock
from penstock.cli.dashboard import opened_in_browser
from penstock.dashboard import Dashboard
from penstock.quarantine import QUARANTINE_SCHEMA

EVIL = '<script>window.hacked = 1</script><img src="x" onerror="window.hacked = 2"> & "quoted"'
PARTITIONS, COLUMNS = 1000, 120
HOT = 321

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four pipelines: one that runs, one that failed, one file that is wrong, one with a thousand partitions."""
    folder = tmp_path_factory.mktemp("pipelines")
    orders = made.definition(
        folder,
        transforms=[{"where": "amount >= 0"}, {"derive": {"cents": "amount * 100"}}],
        sinks=[
            {"name": "out", "type": "delta", "path": "lake/orders"},
            {"name": "files", "type": "parquet", "path": "lake/files"},
        ],
    )
    _quarantine(folder / "lake" / "orders_bad")
    made.committed(orders, {0: 500, 1: 500})
    made.write_history(orders, _history())
    failed = made.definition(folder, "payments")
    made.committed(failed, {0: 10})
    made.ran(failed, "SINK_TOKEN_MISMATCH", batch_id=31, batch_seconds=2.0, lag=5120)
    (folder / "broken.yaml").write_text("name: broken\nsource: <b>none</b>\n")
    wide = made.definition(folder, "wide")
    made.write_history(wide, _wide_history())
    with ExitStack() as held:
        for file in (orders, wide):
            held.enter_context(checkpoint_lock(str(made.checkpoint_of(file))))
            made.runs(file, doing="committing batch 42")
        yield folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Dashboard]:
    with Dashboard(sorted(folder.glob("*.yaml"))) as dashboard:
        yield dashboard


def _history() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [
        {"at": made.ago(300), "event": "started", "lane": "direct", "partitions": 2, "pid": 1},
        {"at": made.ago(290), "event": "notice", "text": EVIL},
        {"at": made.ago(200), "event": "alert", "rule": "lag_over 100", "state": "firing", "text": "lag is 4,000"},
        {"at": made.ago(150), "event": "alert", "rule": "lag_over 100", "state": "resolved", "text": "lag is 40"},
        {
            "at": made.ago(100), "event": "flow", "batch_id": 30, "cap": 5000, "before": 2500, "reason": "behind",
            "text": "behind by 4,000 offsets",
        },
    ]  # fmt: skip
    entries += [made.batch(number, made.ago(4 * (42 - number) + 2)) for number in range(13, 43)]
    entries += [made.lag(made.ago(5 * (39 - n) + 1), "orders", [9000 + n, 1500], [1234 + n, 1500]) for n in range(40)]
    return sorted(entries, key=lambda entry: str(entry["at"]))


def _wide_history() -> list[dict[str, Any]]:
    ends: list[int | None] = [1000 + p for p in range(PARTITIONS)]
    ends[HOT] = 900_000
    return [
        made.lag(made.ago(5 * (COLUMNS - n)), "wide", ends, [500 + n for _ in range(PARTITIONS)])
        for n in range(COLUMNS)
    ]


def _quarantine(path: Path) -> None:
    now = datetime.now(UTC)
    row = {
        "pipeline": "orders", "batch_id": 41, "stage": "decode", "code": "MALFORMED_JSON",
        "message": f"not JSON: {EVIL}", "key": None, "value": EVIL.encode(), "headers": None,
        "topic": "orders", "partition": 1, "offset": 77, "timestamp": now, "quarantined_at": now,
    }  # fmt: skip
    write_deltalake(path, pa.Table.from_pylist([row], schema=QUARANTINE_SCHEMA))


def _asked(served: Dashboard, path: str) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/api/{path}", headers={"Authorization": f"Bearer {served.token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _figure(page: Any, name: str) -> str:
    return str(page.locator(f".f-{name} .value").inner_text())


def test_overview_numbers_are_those_of_the_server(served: Dashboard, opened: Open) -> None:
    page = opened(served.url)
    page.wait_for_selector("tbody tr >> nth=3")
    told = {row["id"]: row for row in _asked(served, "overview")["pipelines"]}
    shown = {row.locator("th a").inner_text(): row for row in page.locator("tbody tr").all()}
    assert set(shown) == {"orders", "payments", "broken", "wide"}
    assert [row.locator(".state").inner_text() for row in shown.values()][:2] == ["wrong file", "failed"]
    orders = shown["orders"]
    assert orders.locator(".c-lag .n").inner_text() == f"{told['orders']['lag']:,}"
    assert orders.locator(".c-batch .n").inner_text() == str(told["orders"]["batch_id"])
    rate = float(orders.locator(".c-in .n").inner_text().removesuffix("/s").replace(",", ""))
    assert rate == pytest.approx(told["orders"]["rows_in_rate"], rel=0.1)
    assert shown["payments"].locator(".problem").inner_text() == told["payments"]["problem"]
    exact = orders.locator("time").get_attribute("title")
    assert re.search(r"\d{4}.*\d+:\d\d:\d\d", exact)
    assert "<b>" not in page.locator("tbody").inner_html()


def test_detail_numbers_are_those_of_the_server(served: Dashboard, opened: Open) -> None:
    before = _asked(served, "pipelines/orders")
    page = opened(served.url, "#/p/orders")
    page.locator("#quarantine .samples li").wait_for()
    rates = [label.text_content() for label in page.locator(".edge-rate").all()]
    told = _asked(served, "pipelines/orders")
    assert _figure(page, "lag") == f"{told['lag']:,}"
    assert _figure(page, "cap") == "5,000"
    assert _figure(page, "batch") == "2 s"
    boxes = [box.get_attribute("aria-label") for box in page.locator(".box").all()]
    assert [box.split(":")[0] for box in boxes] == ["reads", "decodes", "transforms", "writes", "writes", "sets aside"]
    rows = 30 * 1000
    assert boxes[0].endswith(f"{rows:,} rows")
    assert "where amount >= 0, derive" in boxes[2]
    # Nothing is read any more, so the rate falls from one second to the next: the page shows one between the two asked.
    assert round(told["rows_in_rate"]) <= int(rates[0].removesuffix("/s")) <= round(before["rows_in_rate"])
    decision = " ".join(page.locator("#decisions li").inner_text().split())
    assert re.fullmatch("▲ 2,500 → 5,000 behind after batch 30 [12] min ago behind by 4,000 offsets", decision)
    assert page.locator("#quarantine .codes").inner_text().split() == ["MALFORMED_JSON", "1"]
    # What the dashboard itself could not see, here the brokers, may stand above.
    assert page.locator("#news .word").all_inner_texts()[-3:] == ["resolved", "alert", "notice"]
    assert "cap 5,000 offsets" in page.locator("#batches .remark").inner_text()


def test_values_that_look_like_html_are_shown_as_text(served: Dashboard, opened: Open) -> None:
    page = opened(served.url, "#/p/orders")
    page.locator("#quarantine .samples li").wait_for()
    assert page.locator("#quarantine .value").text_content() == EVIL
    assert page.locator("#quarantine .sample-message").text_content() == f"not JSON: {EVIL}"
    assert page.locator("#news").get_by_text(EVIL).count() == 1
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


def test_page_gets_what_is_new_without_a_reload(served: Dashboard, folder: Path, opened: Open) -> None:
    page = opened(served.url)
    lag = page.locator("tbody tr", has_text="orders.yaml").locator(".c-lag .n")
    lag.wait_for()
    page.evaluate("window.kept = document.querySelector('tbody').firstElementChild")
    made.write_history(folder / "orders.yaml", [made.lag(made.ago(0), "orders", [60_000, 1500], [0, 1500])])
    expect(lag).to_have_text("60,000")
    assert page.evaluate("window.kept.isConnected")
    page.evaluate("location.hash = '#/p/orders'")
    expect(page.locator("#lag .remark")).to_have_text(re.compile("2 partitions, "))
    before = page.locator("#lag .remark").inner_text()
    made.write_history(folder / "orders.yaml", [made.lag(made.ago(0), "orders", [61_000, 1500], [0, 1500])])
    expect(page.locator(".f-lag .value")).to_have_text("61,000")
    expect(page.locator("#lag .remark")).not_to_have_text(before)


def test_addresses_lead_to_their_pages(served: Dashboard, opened: Open) -> None:
    page = opened(served.url)
    page.get_by_role("link", name="payments").click()
    page.get_by_role("heading", name="payments", level=1).wait_for()
    assert page.url.endswith("/#/p/payments")
    assert "token" not in page.url
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.locator(".banner").inner_text() == "the last run was ended by SINK_TOKEN_MISMATCH"
    page.reload()
    page.get_by_role("heading", name="payments", level=1).wait_for()
    page.go_back()
    page.get_by_role("heading", name="Pipelines", level=1).wait_for()
    page.evaluate("location.hash = '#/p/nobody'")
    page.get_by_text("No pipeline “nobody” is watched here").wait_for()
    page.evaluate("location.hash = '#/p/broken'")
    page.locator(".banner", has_text="broken.yaml:").wait_for()
    assert page.locator(".panels").is_hidden()


def test_everything_is_reached_by_keyboard(served: Dashboard, opened: Open) -> None:
    page = opened(served.url)
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    page.keyboard.type("orders runn")
    assert page.locator("tbody tr").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "orders"
    page.keyboard.press("Enter")
    page.locator("#lag .plot").wait_for()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    page.locator("#lag .plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowDown")
    assert page.locator("#lag .plot-tip").inner_text().startswith("orders[1]\nlag 0")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    oldest = page.evaluate("document.querySelector('#lag .plot-frame > .sr').textContent")
    assert re.match(r"orders\[0\], lag [\d,]+, \d+:\d\d:\d\d", oldest)
    page.keyboard.press("n")
    page.wait_for_url(re.compile("#/p/(?!orders)"))
    page.keyboard.press("o")
    page.get_by_role("heading", name="Pipelines", level=1).wait_for()


def test_theme_follows_the_system_until_one_is_chosen(served: Dashboard, opened: Open) -> None:
    page = opened(served.url, color_scheme="dark")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(root).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Theme: automatic").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(root).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(root).to_have_attribute("data-theme", "dark")
    assert page.get_by_role("button", name="Theme: dark").is_visible()


CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.checkVisibility() || node.closest('.sr, noscript')) continue;
    const style = getComputedStyle(node);
    const colours = [parse(node instanceof SVGElement ? style.fill : style.color), ground(node)];
    const [more, less] = colours.map(light).sort((a, b) => b - a);
    const ratio = (more + 0.05) / (less + 0.05);
    if (ratio < 4.5) found.push(`${walk.currentNode.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(served: Dashboard, opened: Open, theme: str) -> None:
    page = opened(served.url, color_scheme=theme)
    page.locator("tbody tr").first.wait_for()
    assert page.evaluate(CONTRASTS) == []
    for name in ("orders", "payments"):
        page.evaluate(f"location.hash = '#/p/{name}'")
        page.locator(".figure").first.wait_for()
        assert page.evaluate(CONTRASTS) == []


@pytest.mark.parametrize("width", [320, 768, *(pytest.param(width, marks=pytest.mark.long) for width in (360, 1100))])
def test_narrow_screens_need_no_scrolling_to_the_side(served: Dashboard, opened: Open, width: int) -> None:
    page = opened(served.url, width=width, height=740)
    page.locator("tbody tr").first.wait_for()
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) == 0
    page.evaluate("location.hash = '#/p/orders'")
    page.locator("#flow .box").first.wait_for()
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator("#lag tbody tr").first.wait_for()
    assert page.evaluate(over) == 0
    inside = page.evaluate(
        "[...document.querySelectorAll('.box')].every((b) => b.getBoundingClientRect().right <= innerWidth)"
    )
    assert inside


COLOURS_DRAWN = """async () => {
  for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
  const canvas = document.querySelector('#lag canvas');
  const line = canvas.getContext('2d').getImageData(canvas.width - 30, 0, 1, canvas.height - 30);
  const pixels = new Uint32Array(line.data.buffer);
  return new Set(pixels).size;
}"""


CALLS_OF_A_DRAWING = """async () => {
  let calls = 0;
  const methods = CanvasRenderingContext2D.prototype;
  for (const name of ['fillRect', 'fillText', 'stroke', 'fill', 'drawImage', 'putImageData']) {
    const before = methods[name];
    methods[name] = function (...words) {
      calls += 1;
      return before.apply(this, words);
    };
  }
  document.dispatchEvent(new CustomEvent('themechange'));
  for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
  return calls;
}"""


def test_thousand_partitions_are_drawn_and_told(served: Dashboard, opened: Open) -> None:
    page = opened(served.url, "#/p/wide")
    page.get_by_text("1,000 partitions, 120 moments").wait_for()
    assert page.evaluate(COLOURS_DRAWN) >= 4, "partitions of other lags are other shades in one moment"
    assert page.locator(".hot-ones").inner_text() == f"Hot: wide[{HOT}] {900_000 - 500 - COLUMNS + 1:,}"
    box = page.locator("#lag .plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 400 * (HOT + 0.5) / PARTITIONS)
    assert page.locator("#lag .plot-tip").inner_text().startswith(f"wide[{HOT}]\nlag 899,381")
    page.locator("#lag select").select_option("worst")
    page.locator("#lag .plot").focus()
    page.keyboard.press("End")
    assert page.locator("#lag .plot-tip").inner_text().startswith(f"wide[{HOT}]")
    page.locator("#lag summary").click()
    expect(page.locator("#lag tbody tr")).to_have_count(PARTITIONS)
    assert page.locator("#lag tbody tr").first.inner_text().split() == (
        f"wide[{HOT}] 619 900,000 899,381 – ▲ hot".split()
    )
    calls = page.evaluate(CALLS_OF_A_DRAWING)
    assert 0 < calls < 500, "the work of a drawing goes by the size of the screen, not by the number of cells"


def test_page_keeps_no_more_than_it_shows(served: Dashboard, opened: Open) -> None:
    page = opened(served.url)
    kept = page.evaluate("""async () => {
      const { Heat } = await import('/assets/heat-data.js');
      const heat = new Heat();
      let partitions = [{ topic: 't', partition: 0 }];
      for (let at = 0; at < 5000; at += 1) {
        heat.take({ partitions, times: [String(at).padStart(6, '0')], columns: [[at]], append: at > 0 });
      }
      partitions = [...partitions, { topic: 't', partition: 1 }];
      heat.take({ partitions, times: ['x'], columns: [[1, 2]], append: true });
      return [heat.times.length, heat.columns.length, heat.columns[0], heat.latest];
    }""")
    assert kept == [120, 120, [4881, None], [1, 2]]


def test_page_has_names_and_roles_for_a_screen_reader(served: Dashboard, opened: Open) -> None:
    page = opened(served.url)
    page.locator("tbody tr").first.wait_for()
    expect(page.locator("body")).to_match_aria_snapshot("""
        - link "Skip to the content"
        - banner:
          - link "Penstock"
          - paragraph: live
          - 'button "Theme: automatic"'
          - button "Keys"
        - main:
          - heading "Pipelines" [level=1]
          - search:
            - searchbox "Filter the pipelines"
            - combobox "Sort by"
          - table "Pipelines":
            - rowgroup:
              - row:
                - columnheader "State"
                - columnheader "Pipeline"
                - columnheader "Lag"
    """)
    page.evaluate("location.hash = '#/p/orders'")
    page.locator("#flow .box").first.wait_for()
    expect(page.locator("main")).to_match_aria_snapshot("""
        - navigation "Way back":
          - link "← All pipelines"
        - heading "orders" [level=1]
        - term: Lag
        - region "Diagnosis":
          - heading "Diagnosis" [level=2]
        - region "Flow":
          - heading "Flow" [level=2]
          - list "Parts of the pipeline":
            - listitem /reads. orders/
          - list "Rates between the parts":
            - listitem: /orders to json. .* rows/
        - region "Lag by partition":
          - heading "Lag by partition" [level=2]
          - application /Lag by partition over time, 2 partitions.*Most now/
        - region "Batch time by phase":
          - application /Batch time by phase, the last 30 batches. Median 2 s/
    """)
    headings = page.locator("h1:visible, h2:visible, h3:visible")
    levels = headings.evaluate_all("(all) => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_movement_stops_where_it_is_not_wanted(served: Dashboard, folder: Path, opened: Open) -> None:
    made.write_history(folder / "orders.yaml", [made.batch(43, made.ago(0))])
    page = opened(served.url, "#/p/orders")
    page.locator("#flow .moves").first.wait_for()
    assert page.evaluate("document.getAnimations().length") > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate("document.getAnimations().length") == 0


def test_connection_that_breaks_is_told_and_comes_back(folder: Path, opened: Open) -> None:
    files = [folder / "orders.yaml"]
    with Dashboard(files) as first:
        page = opened(first.url, expected="Failed to load resource")
        page.locator("[data-link=live] tbody tr").wait_for()
        fresh = page.locator(".c-lag .n").evaluate("(n) => getComputedStyle(n).fontStyle")
    page.locator("[data-link=reconnecting]").wait_for()
    assert page.locator("#lost").is_visible()
    assert page.locator("#lost").inner_text().startswith("The connection is lost")
    assert "The data shown is from" in page.locator("#lost").inner_text()
    stale = page.locator(".c-lag .n").evaluate("(n) => getComputedStyle(n).fontStyle")
    assert (fresh, stale) == ("normal", "italic")
    assert page.evaluate("document.getElementById('said').textContent").startswith("The connection is lost")
    with Dashboard(files, port=first.port, token=first.token):
        page.locator("[data-link=live]").wait_for()
        assert page.locator("#lost").is_hidden()
    with Dashboard(files, port=first.port):
        page.locator("[data-link=locked]").wait_for()


def test_page_without_the_token_says_how_and_shows_nothing(served: Dashboard, opened: Open) -> None:
    page = opened(f"http://127.0.0.1:{served.port}/?token=guessed", expected="401")
    page.get_by_role("heading", name="Open the dashboard by its link").wait_for()
    assert "orders" not in page.content()
    assert page.evaluate("fetch('/api/overview').then((answer) => answer.status)") == 401


def test_page_that_the_command_opens_leads_into_the_dashboard(
    browser: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, which is another site: the cookie must come along all the same."""
    began: list[str] = []
    monkeypatch.setattr(webbrowser, "open", began.append)
    with Dashboard([folder / "orders.yaml"]) as dashboard, opened_in_browser(dashboard.url, True):
        context = browser.new_context()
        page = context.new_page()
        page.goto(began[0])
        page.wait_for_url(f"http://127.0.0.1:{dashboard.port}/**")
        expect(page.get_by_text("orders").first).to_be_visible()
        assert dashboard.token not in page.url
        context.close()
