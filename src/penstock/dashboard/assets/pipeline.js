// One pipeline: its state, its figures, and a panel for each thing that one wants to see of it.

import { BatchPanel } from './batches.js';
import { attr, h, list, setMark, text, time } from './dom.js';
import { CheckpointPanel, DecisionPanel, DiagnosisPanel, NewsPanel, QuarantinePanel } from './findings.js';
import { FlowPanel } from './flow.js';
import { amount, count, NONE, rate, seconds, showTime, span } from './format.js';
import { HeatPanel } from './heat.js';
import { behindWords, isRunning, markOf, rateOf } from './overview.js';

const SINCE = { running: 'started', silent: 'last heard of' };

export class PipelinePage {
  constructor(id, heat) {
    this.id = id;
    this.title = h('h1', { tabindex: '-1' }, id);
    this.badge = h('p', { class: 'badge' }, h('span', { class: 'm' }), h('span'));
    this.about = h('p', { class: 'about' });
    this.doing = h('span');
    this.since = time();
    this.problem = h('div', { class: 'banner', hidden: true }, h('span', { class: 'm' }), h('p', {}));
    this.figures = h('dl', { class: 'figures' });
    this.panels = [
      new DiagnosisPanel(), new FlowPanel(), new HeatPanel(heat), new BatchPanel(), new DecisionPanel(),
      new QuarantinePanel(), new CheckpointPanel(), new NewsPanel(),
    ];
    const [diagnosis, flow, lag, batches, decisions, quarantine, checkpoint, news] = this.panels.map((one) => one.element);
    this.grid = h(
      'div', { class: 'panels', hidden: true }, diagnosis, flow, lag,
      h('div', { class: 'column' }, batches, quarantine), h('div', { class: 'column' }, decisions, checkpoint, news),
    );
    this.waiting = h('p', { class: 'empty' }, 'Reading the pipeline…');
    this.element = h(
      'div', { class: 'view' },
      h('nav', { class: 'crumbs', 'aria-label': 'Way back' }, h('a', { href: '#/' }, '← All pipelines')),
      h('div', { class: 'head' }, this.title, this.badge, this.about),
      this.problem, this.figures, this.waiting, this.grid,
    );
  }

  close() {
    for (const one of this.panels) one.close?.();
  }

  update(overview, detail) {
    const one = detail ?? overview.pipelines.find((row) => row.id === this.id);
    if (!one) {
      text(this.waiting, `No pipeline “${this.id}” is watched here: its file is gone, or the link is of another dashboard.`);
      this.waiting.hidden = false;
      this.grid.hidden = this.figures.hidden = this.badge.hidden = true;
      return;
    }
    this.badge.hidden = false;
    this.head(one);
    const readable = one.state !== 'wrong file';
    this.figures.hidden = !readable;
    this.waiting.hidden = detail !== null || !readable;
    this.grid.hidden = detail === null || !readable;
    attr(this.element, 'class', `view ${isRunning(one) ? '' : 'old'}`.trim());
    if (!readable) return;
    this.showFigures(one, detail);
    if (detail) for (const part of this.panels) part.update(detail);
  }

  head(one) {
    text(this.title, one.name);
    setMark(this.badge.firstChild, markOf(one));
    text(this.badge.lastChild, one.state);
    attr(this.badge, 'class', `badge ${markOf(one)}`);
    if (!this.about.firstChild) this.about.append(this.doing, ' ', this.since);
    const lane = one.lane ? `${one.lane} lane` : null;
    text(this.doing, [one.file, lane, one.doing === one.state ? null : one.doing, one.since ? SINCE[one.state] ?? 'ended' : null].filter(Boolean).join(' · '));
    showTime(this.since, one.since);
    this.since.hidden = !one.since;
    const [shape, words] = this.problem.children;
    this.problem.hidden = !one.problem;
    attr(this.problem, 'class', `banner ${one.health}`);
    setMark(shape, one.health);
    text(words, one.problem);
  }

  showFigures(one, detail) {
    const report = detail?.lag_report;
    const growth = report?.growth;
    const grows = growth === null || growth === undefined ? null : `${growth > 0 ? '▲ grows' : growth < 0 ? '▼ falls' : '= steady'}${growth ? ` ${rate(Math.abs(growth))}` : ''}`;
    const figures = [
      { key: 'lag', name: 'Lag', value: amount(one.lag), note: grows },
      { key: 'behind', name: 'Behind', value: behindWords(one), note: report?.catch_up_seconds ? `caught up in ${span(report.catch_up_seconds)}` : null },
      { key: 'in', name: 'Rows in', value: rateOf(one, 'rows_in_rate'), note: null },
      { key: 'out', name: 'Rows out', value: rateOf(one, 'rows_out_rate'), note: null },
      { key: 'quarantined', name: 'Quarantined', value: rateOf(one, 'quarantined_rate'), note: null, health: one.quarantined_rate > 0 ? 'some' : null },
      { key: 'batch', name: 'Last batch', value: seconds(one.batch_seconds), note: one.batch_id === null || one.batch_id === undefined ? null : `batch ${count(one.batch_id)}`, at: one.batch_at },
      { key: 'cap', name: 'Cap', value: count(one.cap), note: one.cap ? 'offsets a batch' : null },
    ];
    list(
      this.figures, figures, (figure) => figure.key,
      (figure) => h('div', { class: `figure f-${figure.key}` }, h('dt', {}, figure.name), h('dd', { class: 'value' }), h('dd', { class: 'note' }, h('span'), time())),
      (node, figure) => {
        const [, value, note] = node.children;
        text(value, figure.value ?? NONE);
        attr(node, 'data-some', figure.health);
        text(note.firstChild, figure.note ? `${figure.note}${figure.at ? ', ' : ''}` : '');
        showTime(note.lastChild, figure.at);
        note.lastChild.hidden = !figure.at;
      },
    );
  }
}
