// All pipelines, the worst first: one row each, updated in place.

import { attr, h, list, setMark, text, time } from './dom.js';
import { amount, count, NONE, plural, rate, seconds, showTime, span } from './format.js';
import { drawSparkline, sparkline } from './sparkline.js';

const HEALTH = { bad: 0, warn: 1, ok: 2 };
const ORDERS = {
  // Only what changes seldom decides, so that rows do not change places under the reader's hand.
  worst: (a, b) => worse(a, b) || byName(a, b),
  lag: (a, b) => (b.lag ?? -1) - (a.lag ?? -1) || byName(a, b),
  behind: (a, b) => (b.behind_seconds ?? -1) - (a.behind_seconds ?? -1) || byName(a, b),
  name: byName,
};
const COLUMNS = [
  ['state', 'State'],
  ['name', 'Pipeline'],
  ['lag', 'Lag', 'offsets that wait'],
  ['behind', 'Behind', 'age of the first unread record'],
  ['in', 'Rows in', 'rows a second'],
  ['out', 'Rows out', 'rows a second'],
  ['quarantined', 'Quarantined', 'rows a second'],
  ['batch', 'Last batch'],
];

function byName(a, b) {
  return a.name.localeCompare(b.name, undefined, { numeric: true }) || a.id.localeCompare(b.id);
}

function worse(a, b) {
  return HEALTH[a.health] - HEALTH[b.health] || Number(isRunning(b)) - Number(isRunning(a));
}

export function isRunning(one) {
  return one.state === 'running';
}

export function behindWords(one) {
  return one.lag === 0 && !one.behind_seconds ? 'caught up' : span(one.behind_seconds);
}

/** A rate of a pipeline; what does not run has none. */
export function rateOf(one, name) {
  return isRunning(one) ? rate(one[name]) : NONE;
}

/** The mark of a pipeline: a ring where it is not running and nothing is wrong with that. */
export function markOf(one) {
  return one.health === 'ok' && !isRunning(one) ? 'off' : one.health;
}

export class OverviewPage {
  constructor() {
    this.summary = h('p', { class: 'summary' });
    this.filter = h('input', {
      type: 'search', id: 'filter', placeholder: 'Filter', autocomplete: 'off', spellcheck: 'false', oninput: () => this.arrange(),
    });
    this.sorting = h(
      'select', { id: 'sorting', onchange: () => this.arrange() },
      h('option', { value: 'worst' }, 'worst first'), h('option', { value: 'lag' }, 'lag'),
      h('option', { value: 'behind' }, 'behind'), h('option', { value: 'name' }, 'name'),
    );
    this.body = h('tbody', { role: 'rowgroup' });
    this.table = h(
      'table', { class: 'pipelines', role: 'table', 'aria-labelledby': 'overview-title' },
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, ...COLUMNS.map(([name, title, hint]) =>
        h('th', { scope: 'col', role: 'columnheader', class: `c-${name}`, title: hint }, title)))),
      this.body,
    );
    this.nothing = h('div', { class: 'empty', hidden: true });
    this.element = h(
      'div', { class: 'view' },
      h('div', { class: 'head' }, h('h1', { id: 'overview-title', tabindex: '-1' }, 'Pipelines'), this.summary),
      (this.tools = h(
        'div', { class: 'tools', role: 'search' },
        h('label', { class: 'field' }, h('span', { class: 'sr' }, 'Filter the pipelines'), this.filter),
        h('label', { class: 'field' }, h('span', {}, 'Sort by'), this.sorting),
      )),
      this.table, this.nothing,
    );
    this.pipelines = [];
    this.shown = [];
  }

  focusFilter() {
    this.filter.focus();
    this.filter.select();
  }

  /** The ids in the order of the rows, for the keys that go to the next one. */
  order() {
    return this.shown.map((one) => one.id);
  }

  update(overview) {
    this.pipelines = overview.pipelines;
    this.summarize();
    this.arrange();
  }

  summarize() {
    const all = this.pipelines;
    const running = all.filter(isRunning);
    const care = all.filter((one) => one.health === 'warn').length;
    const wrong = all.filter((one) => one.health === 'bad').length;
    const sum = (key) => running.reduce((total, one) => total + (one[key] ?? 0), 0);
    const lag = all.reduce((total, one) => total + (one.lag ?? 0), 0);
    const parts = [
      ['all', null, `${count(running.length)} of ${plural(all.length, 'pipeline')} running`],
      ['bad', 'bad', wrong ? `${count(wrong)} wrong` : null],
      ['warn', 'warn', care ? `${count(care)} ${care === 1 ? 'wants' : 'want'} care` : null],
      ['ok', 'ok', all.length && !wrong && !care ? 'nothing wrong' : null],
      ['lag', null, `lag ${count(lag)}`],
      ['in', null, `in ${rate(sum('rows_in_rate'))}`],
      ['out', null, `out ${rate(sum('rows_out_rate'))}`],
    ].filter(([, , words]) => words);
    list(
      this.summary, all.length ? parts : [], ([key]) => key,
      ([, health]) => h('span', { class: `fact ${health ?? ''}` }, ...(health ? [h('span', { class: 'm' })] : []), h('span')),
      (node, [, health, words]) => {
        if (health) setMark(node.firstChild, health);
        text(node.lastChild, words);
      },
    );
  }

  arrange() {
    const words = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const said = (one) => [one.name, one.id, one.file, one.state, one.lane, one.problem].join(' ').toLowerCase();
    this.shown = this.pipelines
      .filter((one) => words.every((word) => said(one).includes(word)))
      .sort(ORDERS[this.sorting.value]);
    list(this.body, this.shown, (one) => one.id, makeRow, updateRow);
    this.table.hidden = !this.shown.length;
    this.tools.hidden = !this.pipelines.length;
    this.nothing.hidden = this.shown.length > 0;
    if (this.shown.length) return;
    if (this.pipelines.length) {
      text(this.nothing, `None of ${plural(this.pipelines.length, 'pipeline')} has “${this.filter.value.trim()}” in its name, file, state or problem.`);
    } else if (!this.nothing.firstElementChild) {
      this.nothing.replaceChildren(
        h('h2', {}, 'No pipelines yet'),
        h('p', {}, 'Start the dashboard with pipeline files, or in a folder that holds some:'),
        h('pre', {}, 'penstock init\npenstock dashboard orders.yaml'),
      );
    }
  }
}

function makeRow() {
  const cell = (name, ...children) => h('td', { class: `c-${name}`, role: 'cell', 'data-title': titleOf(name) }, ...children);
  return h(
    'tr', { role: 'row' },
    cell('state', h('span', { class: 'm' }), h('span', { class: 'state' })),
    h('th', { class: 'c-name', scope: 'row', role: 'rowheader' }, h('a', { class: 'to' }), h('span', { class: 'file' }), h('span', { class: 'problem' })),
    cell('lag', h('span', { class: 'n' }), sparkline()),
    cell('behind', h('span', { class: 'n' })),
    cell('in', h('span', { class: 'n' })),
    cell('out', h('span', { class: 'n' })),
    cell('quarantined', h('span', { class: 'n' })),
    cell('batch', h('span', { class: 'n' }), h('span', { class: 'took' }), time()),
  );
}

function titleOf(name) {
  return COLUMNS.find(([key]) => key === name)[1];
}

function updateRow(row, one) {
  const [state, name, lag, behind, rowsIn, rowsOut, quarantined, batch] = row.children;
  attr(row, 'class', `health-${one.health} ${isRunning(one) ? '' : 'old'}`.trim());
  setMark(state.firstChild, markOf(one));
  text(state.lastChild, one.state);
  attr(state, 'title', one.doing);
  const [link, file, problem] = name.children;
  text(link, one.name);
  attr(link, 'href', `#/p/${encodeURIComponent(one.id)}`);
  text(file, one.file.split('/').at(-1));
  attr(file, 'title', one.file);
  text(problem, one.problem);
  text(lag.firstChild, amount(one.lag));
  attr(lag.firstChild, 'title', one.lag === null ? null : count(one.lag));
  drawSparkline(lag.lastChild, one.lag_series);
  text(behind.firstChild, behindWords(one));
  text(rowsIn.firstChild, rateOf(one, 'rows_in_rate'));
  text(rowsOut.firstChild, rateOf(one, 'rows_out_rate'));
  text(quarantined.firstChild, rateOf(one, 'quarantined_rate'));
  attr(quarantined, 'data-some', one.quarantined_rate > 0);
  const [id, took, at] = batch.children;
  text(id, one.batch_id === null || one.batch_id === undefined ? NONE : count(one.batch_id));
  text(took, one.batch_seconds === null || one.batch_seconds === undefined ? '' : seconds(one.batch_seconds));
  showTime(at, one.batch_at);
  at.hidden = !one.batch_at;
}
