// Batch time stacked by phase, and under it how many offsets each batch took of its cap.

import { attr, h, list, svg, text, time } from './dom.js';
import { ago, clockTime, count, plural, seconds, short, showTime } from './format.js';
import { panel, TableBehind } from './panel.js';
import { colour, Plot } from './plot.js';

const LEFT = 46;
const RIGHT = 4;
const TOP = 14;
const CAPS = 46;
const GAP = 26;
const NAMED = { offsets: '--phase-offsets', read: '--phase-read', decode: '--phase-decode', transform: '--phase-transform', stage: '--phase-stage', finish: '--phase-finish', other: '--phase-other' };

export class BatchPanel {
  constructor() {
    this.panel = panel('batches', 'Batch time by phase');
    this.batches = [];
    this.phases = [];
    this.target = null;
    this.legend = h('ul', { class: 'legend', 'aria-label': 'Phases, from the bottom of a bar up' });
    this.plot = new Plot({
      label: 'Batch time by phase', kind: 'bar chart',
      draw: (context, size) => this.draw(context, size),
      grid: () => ({ columns: this.batches.length, rows: 1 }),
      cellAt: (x) => this.cellAt(x),
      boxOf: ({ column }) => this.boxOf(column),
      say: ({ column }) => this.say(this.batches[column]),
    });
    this.plot.area.classList.add('batch-plot');
    this.empty = h('p', { class: 'none' }, 'No batch has ended yet.');
    this.table = new TableBehind('The batches as a table', [
      ['Batch', 'num'], ['Ended'], ['Took', 'num'], ['Waited', 'num'], ['Rows in', 'num'], ['Rows out', 'num'], ['Quarantined', 'num'], ['Offsets', 'num'], ['Cap', 'num'], ['By phase'],
    ]);
    this.table.rows = () => list(this.table.body, [...this.batches].reverse(), (one) => one.id, makeRow, (row, one) => updateRow(row, one, this.phases));
    this.chart = h('div', {}, this.legend, this.plot.element, this.table.element);
    this.panel.body.append(this.empty, this.chart);
    this.element = this.panel.element;
  }

  close() {
    this.plot.close();
  }

  update({ batches, phases, target, cap }) {
    this.batches = batches ?? [];
    this.phases = phases ?? [];
    this.target = target ?? null;
    this.empty.hidden = this.batches.length > 0;
    this.chart.hidden = !this.batches.length;
    this.panel.remark(this.words(cap));
    const last = this.batches.at(-1);
    const stamp = last ? `${last.id} ${last.at} ${this.batches.length}` : '';
    if (stamp === this.seen) return;
    this.seen = stamp;
    if (!last) return;
    list(
      this.legend, this.phases, (name) => name,
      (name) => h('li', {}, swatch(this.colourOf(name)), h('span', {}, name)),
      (node, name) => attr(node, 'title', `${seconds(last.phases[name] ?? 0)} of the last batch`),
    );
    const middle = [...this.batches].map((one) => one.seconds).sort((a, b) => a - b)[Math.floor(this.batches.length / 2)];
    this.plot.setLabel(
      `Batch time by phase, the last ${plural(this.batches.length, 'batch', 'batches')}. Median ${seconds(middle)}, last ${seconds(last.seconds)}. ` +
      'Arrow keys move the cursor; a table follows.',
    );
    this.plot.redraw();
    this.table.update();
  }

  words(cap) {
    const target = this.target?.seconds ? `target ${seconds(this.target.seconds)}` : null;
    return [target, cap ? `cap ${count(cap)} offsets${this.target?.fixed ? ', fixed' : ''}` : null].filter(Boolean).join(', ');
  }

  colourOf(name) {
    if (NAMED[name]) return NAMED[name];
    const commits = this.phases.filter((phase) => !NAMED[phase]);
    return `--phase-commit-${(commits.indexOf(name) % 4) + 1}`;
  }

  frame({ width, height }) {
    const cell = Math.min(26, (width - LEFT - RIGHT) / Math.max(this.batches.length, 12));
    return { cell, left: width - RIGHT - cell * this.batches.length, right: width - RIGHT, bottom: height - CAPS - GAP, base: height - 2, height };
  }

  /** The top of the scale: one slow batch among many quick ones is cut off, and marked, so that the others can be read. */
  top() {
    const times = this.batches.map((one) => one.seconds).sort((a, b) => a - b);
    const most = times.at(-1);
    const usual = times[Math.floor((times.length - 1) * 0.95)];
    const high = most > 4 * usual && usual > 0 ? usual * 1.6 : most;
    const target = this.target?.seconds ?? 0;
    return nice(target && target < high * 2.5 ? Math.max(high, target) : high);
  }

  draw(context, size) {
    const frame = this.frame(size);
    const top = this.top();
    const y = (value) => frame.bottom - (Math.min(value, top) / top) * (frame.bottom - TOP);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    for (const share of [0, 0.5, 1]) {
      context.fillStyle = colour('--line');
      context.fillRect(LEFT, Math.round(y(top * share)), frame.right - LEFT, 1);
      context.fillStyle = colour('--muted');
      context.textAlign = 'right';
      context.fillText(share ? seconds(top * share) : '0', LEFT - 6, y(top * share));
    }
    const gap = frame.cell > 3 ? 1 : 0;
    this.batches.forEach((one, at) => {
      const { x, wide } = bar(frame, at, gap);
      let sum = 0;
      for (const name of this.phases) {
        const value = one.phases[name] ?? 0;
        if (value <= 0) continue;
        context.fillStyle = colour(this.colourOf(name));
        const high = y(sum) - y(sum + value);
        context.fillRect(x, y(sum + value), wide, high > 6 ? high - 0.75 : high);
        sum += value;
      }
      if (one.seconds > top) cutOff(context, x, wide);
    });
    if (this.target?.seconds && this.target.seconds <= top) dashed(context, LEFT, frame.right, Math.round(y(this.target.seconds)) + 0.5, `target ${seconds(this.target.seconds)}`);
    this.drawCaps(context, frame, gap);
  }

  drawCaps(context, frame, gap) {
    const most = Math.max(...this.batches.map((one) => Math.max(one.offsets ?? 0, Math.min(one.cap ?? 0, (one.offsets ?? 0) * 8))), 1);
    const y = (value) => frame.base - (Math.min(value, most) / most) * CAPS;
    context.textAlign = 'right';
    context.fillStyle = colour('--muted');
    context.fillText(short(most), LEFT - 6, frame.base - CAPS + 4);
    context.fillText('0', LEFT - 6, frame.base - 2);
    context.textAlign = 'left';
    context.fillText('offsets taken, and the cap', LEFT, frame.base - CAPS - 9);
    context.fillStyle = colour('--phase-other');
    this.batches.forEach((one, at) => {
      const { x, wide } = bar(frame, at, gap);
      context.fillRect(x, y(one.offsets ?? 0), wide, frame.base - y(one.offsets ?? 0));
    });
    context.strokeStyle = colour('--accent');
    context.lineWidth = 1.5;
    context.beginPath();
    let drawing = false;
    this.batches.forEach((one, at) => {
      if (one.cap === null || one.cap === undefined) {
        drawing = false;
        return;
      }
      const x = frame.left + at * frame.cell;
      if (drawing) context.lineTo(x, y(one.cap));
      else context.moveTo(x, y(one.cap));
      context.lineTo(x + frame.cell, y(one.cap));
      drawing = true;
    });
    context.stroke();
  }

  cellAt(x) {
    if (!this.plot.size) return null;
    const frame = this.frame(this.plot.size);
    const column = Math.floor((x - frame.left) / frame.cell);
    return column >= 0 && column < this.batches.length ? { column, row: 0 } : null;
  }

  boxOf(column) {
    const frame = this.frame(this.plot.size);
    return { x: frame.left + column * frame.cell - 1, y: TOP - 4, width: frame.cell + 1, height: frame.base - TOP + 4 };
  }

  say(one) {
    const phases = this.phases.filter((name) => one.phases[name] > 0).map((name) => `${name} ${seconds(one.phases[name])}`);
    const cap = one.cap ? ` of a cap of ${count(one.cap)}` : '';
    return [
      `Batch ${count(one.id)}: ${seconds(one.seconds)}`, `${clockTime(one.at)}, ${ago(one.at)}`, ...phases,
      `${count(one.offsets)} offsets${cap}`, `${count(one.rows_in)} rows in, ${count(one.rows_out)} out, ${count(one.quarantined)} quarantined`,
    ];
  }
}

/** A bar's place on whole pixels: bars that begin between two look uneven beside each other. */
function bar(frame, at, gap) {
  const x = Math.round(frame.left + at * frame.cell);
  return { x, wide: Math.max(1, Math.round(frame.left + (at + 1) * frame.cell) - x - gap) };
}

function swatch(name) {
  const rect = svg('rect', { width: 10, height: 10, rx: 2 });
  rect.style.fill = `var(${name})`;
  return svg('svg', { class: 'swatch', viewBox: '0 0 10 10', 'aria-hidden': 'true', focusable: 'false' }, rect);
}

function cutOff(context, x, width) {
  context.fillStyle = colour('--surface');
  context.fillRect(x - 1, TOP + 8, width + 2, 2.5);
  context.fillStyle = colour('--warn');
  context.beginPath();
  context.moveTo(x + width / 2, TOP - 9);
  context.lineTo(x + width / 2 + 4, TOP - 3);
  context.lineTo(x + width / 2 - 4, TOP - 3);
  context.fill();
}

function dashed(context, left, right, y, words) {
  context.save();
  context.strokeStyle = colour('--text');
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(right, y);
  context.stroke();
  context.restore();
  context.font = '11px system-ui, sans-serif';
  context.textAlign = 'left';
  const wide = context.measureText(words).width;
  context.fillStyle = colour('--surface');
  context.fillRect(left + 4, y - 16, wide + 8, 13);
  context.fillStyle = colour('--text');
  context.fillText(words, left + 8, y - 9);
}

/** The next round number. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 0.001)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? value;
}

function makeRow() {
  return h('tr', {}, h('th', { scope: 'row', class: 'num' }), h('td', {}, time()), ...Array.from({ length: 7 }, () => h('td', { class: 'num' })), h('td', { class: 'long' }));
}

function updateRow(row, one, phases) {
  const cells = row.children;
  text(cells[0], count(one.id));
  showTime(cells[1].firstChild, one.at);
  [seconds(one.seconds), seconds(one.waited), count(one.rows_in), count(one.rows_out), count(one.quarantined), count(one.offsets), count(one.cap)]
    .forEach((word, at) => text(cells[at + 2], word));
  text(cells[9], phases.filter((name) => one.phases[name] > 0).map((name) => `${name} ${seconds(one.phases[name])}`).join(', '));
}
