// The page: which view stands for the address, what came last from the stream, and what both say to each other.
// Addresses: #/ all pipelines, #/p/ID one of them.

import { h, text } from './dom.js';
import { clockTime, setNow, amount, tick } from './format.js';
import { Heat } from './heat-data.js';
import { addKeys } from './keys.js';
import { OverviewPage } from './overview.js';
import { PipelinePage } from './pipeline.js';
import { Stream } from './stream.js';

const main = document.getElementById('main');
const said = document.getElementById('said');
const lost = document.getElementById('lost');

const last = { overview: null, detail: null, heat: new Heat() };
let route = { id: null };
let page = null;
let health = new Map();

const LINKS = {
  connecting: ['connecting', null],
  live: ['live', null],
  reconnecting: ['reconnecting', 'The connection is lost; reconnecting.'],
  stopped: ['stopped', 'The dashboard has stopped. Restart it with penstock dashboard, and open its link.'],
  locked: ['locked', 'This token is no longer valid: the dashboard was restarted. Open the link that it printed.'],
};

const stream = new Stream({
  overview(overview) {
    setNow(overview.at);
    last.overview = overview;
    announce(overview.pipelines);
    show();
  },
  detail(detail) {
    if (detail.id !== route.id) return;
    last.heat.take(detail.heat);
    last.detail = detail;
    show();
  },
  link(link) {
    const [word, words] = LINKS[link];
    document.body.dataset.link = link;
    text(document.getElementById('light-word'), word);
    const at = last.overview?.at;
    text(lost, words && at ? `${words} The data shown is from ${clockTime(at)}.` : words);
    lost.hidden = !words;
    if (link !== 'connecting') say(words ?? 'The connection is live.');
  },
});

function idOf(hash) {
  const found = /^#\/p\/(.+)$/.exec(hash);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

function go() {
  const id = idOf(location.hash);
  if (page && id === route.id) return;
  const first = page === null;
  route = { id };
  last.detail = null;
  last.heat = new Heat();
  page?.close?.();
  page = id === null ? new OverviewPage() : new PipelinePage(id, last.heat);
  main.replaceChildren(page.element);
  window.scrollTo(0, 0);
  if (!first) page.element.querySelector('h1')?.focus({ preventScroll: true });
  stream.watch(id);
  show();
}

function show() {
  title();
  if (document.hidden || !last.overview) return;
  page.update(last.overview, last.detail);
}

function title() {
  if (!last.overview) return;
  const row = last.overview.pipelines.find((one) => one.id === route.id);
  const wrong = last.overview.pipelines.filter((one) => one.health !== 'ok').length;
  const attention = wrong ? `(${wrong}) ` : '';
  const words = row ? `${row.name}, lag ${amount(row.lag)}` : null;
  document.title = `${attention}${words ? `${words} · ` : ''}Penstock`;
}

/** Changes of state alone are said; numbers that move all the time would talk over everything. */
function announce(pipelines) {
  const changes = [];
  const now = new Map();
  for (const one of pipelines) {
    const state = `${one.state}|${one.health}`;
    now.set(one.id, state);
    if (health.has(one.id) && health.get(one.id) !== state) {
      changes.push(`${one.name}: ${one.state}${one.problem ? `, ${one.problem}` : ''}`);
    }
  }
  health = now;
  if (changes.length) say(changes.length > 3 ? `${changes.length} pipelines changed` : changes.join('. '));
}

function say(words) {
  text(said, words);
}

document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener('visibilitychange', show);
window.addEventListener('hashchange', go);
setInterval(() => document.hidden || tick(), 1000);

addKeys({
  others: () => page.order?.() ?? last.overview?.pipelines.map((one) => one.id) ?? [],
  current: () => route.id,
  focusFilter: () => page.focusFilter?.(),
});
main.replaceChildren(h('p', { class: 'empty' }, 'Reading the pipelines…'));
go();
