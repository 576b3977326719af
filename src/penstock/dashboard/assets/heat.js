// Lag by partition as a heat strip: a row for each partition, a column for each moment, the newest on the right.
// With more partitions than lines of the screen a line shows the worst of its partitions; the cursor still reaches each.

import { attr, h, list, text } from './dom.js';
import { ago, clockTime, count, NONE, plural, short, span } from './format.js';
import { COLUMNS, nameOf } from './heat-data.js';
import { panel, TableBehind } from './panel.js';
import { colour, Plot } from './plot.js';

const AXIS = 20;
const RIGHT = 16;
const FEWEST = 24;
const STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000];

export class HeatPanel {
  constructor(heat) {
    this.heat = heat;
    this.panel = panel('lag', 'Lag by partition');
    this.order = [];
    this.sorting = h(
      'select', { onchange: () => this.sort() },
      h('option', { value: 'number' }, 'by number'), h('option', { value: 'worst' }, 'worst first'),
    );
    this.hot = h('p', { class: 'hot-ones' });
    this.plot = new Plot({
      label: 'Lag by partition over time', kind: 'heat strip',
      draw: (context, size) => this.draw(context, size),
      grid: () => ({ columns: this.heat.columns.length, rows: this.order.length }),
      cellAt: (x, y) => this.cellAt(x, y),
      boxOf: (cell) => this.boxOf(cell),
      say: (cell) => this.say(cell),
    });
    this.most = h('span', { class: 'n' });
    this.legend = h('p', { class: 'heat-legend' }, h('span', {}, 'lag 0'), h('span', { class: 'ramp', 'aria-hidden': 'true' }), this.most);
    this.empty = h('p', { class: 'none' }, 'No lag is known yet: it is measured while the pipeline runs.');
    this.table = new TableBehind('Lag of every partition as a table', [
      ['Partition'], ['Committed', 'num'], ['Log end', 'num'], ['Lag', 'num'], ['Behind', 'num'], ['Hot'],
    ]);
    this.table.rows = () => list(this.table.body, this.order.map((at) => this.heat.partitions[at]), nameOf, makeRow, updateRow);
    this.strip = h(
      'div', {},
      h('div', { class: 'panel-tools' }, this.hot, h('label', { class: 'field' }, h('span', {}, 'Rows'), this.sorting), this.legend),
      this.plot.element, this.table.element,
    );
    this.group = h('p', { class: 'group' });
    this.panel.body.append(this.empty, this.strip, this.group);
    this.element = this.panel.element;
  }

  close() {
    this.plot.close();
  }

  sort() {
    this.plot.leave();
    this.update(this.detail, true);
  }

  update(detail, force = false) {
    this.detail = detail;
    const { group, group_note: note } = detail.lag_report ?? {};
    text(this.group, group ? `Consumer group ${group}${note ? `: ${note}` : ''}` : note);
    const { partitions, columns, version } = this.heat;
    if (!force && version === this.seen) return;
    this.seen = version;
    this.empty.hidden = columns.length > 0;
    this.strip.hidden = !columns.length;
    if (!columns.length) return;
    const latest = this.heat.latest;
    this.order = partitions.map((_, at) => at);
    if (this.sorting.value === 'worst') this.order.sort((a, b) => (latest[b] ?? -1) - (latest[a] ?? -1) || a - b);
    this.max = this.heat.max;
    text(this.most, short(this.max));
    attr(this.most, 'title', count(this.max));
    this.nameHot();
    const worst = this.order.reduce((a, b) => ((latest[b] ?? -1) > (latest[a] ?? -1) ? b : a), this.order[0]);
    this.panel.remark(`${plural(partitions.length, 'partition')}, ${plural(columns.length, 'moment')}`);
    this.plot.setLabel(
      `Lag by partition over time, ${plural(partitions.length, 'partition')} since ${clockTime(this.heat.times[0])}. ` +
      `Most now: ${nameOf(partitions[worst])} with ${count(latest[worst])}. Arrow keys move the cursor; a table follows.`,
    );
    this.plot.area.style.height = `${Math.min(400, Math.max(60, partitions.length * 14)) + AXIS}px`;
    this.plot.redraw();
    this.table.update();
  }

  nameHot() {
    const hot = this.heat.partitions.filter((one) => one.hot).sort((a, b) => b.lag - a.lag);
    const words = hot.length
      ? `Hot: ${hot.slice(0, 3).map((one) => `${nameOf(one)} ${count(one.lag)}`).join(', ')}${hot.length > 3 ? ` and ${count(hot.length - 3)} more` : ''}`
      : 'No partition is hot';
    text(this.hot, words);
    attr(this.hot, 'data-hot', hot.length > 0);
  }

  frame({ width, height }) {
    const left = Math.min(this.gutter ?? 60, width * 0.3);
    const span = Math.max(this.heat.columns.length, Math.min(FEWEST, COLUMNS));
    const cell = (width - left - RIGHT) / span;
    return { left: left + (span - this.heat.columns.length) * cell, first: left, right: width - RIGHT, cell, height: height - AXIS };
  }

  draw(context, size) {
    const { partitions, columns, times } = this.heat;
    context.font = '11px system-ui, sans-serif';
    const several = new Set(partitions.map((one) => one.topic)).size > 1;
    const label = (at) => (several ? nameOf(partitions[at]) : String(partitions[at].partition));
    const longest = this.order.reduce((most, at) => Math.max(most, label(at).length), 0);
    this.gutter = Math.min(150, context.measureText('0'.repeat(longest)).width + 14);
    const frame = this.frame(size);
    this.paintCells(context, frame);
    const row = frame.height / this.order.length;
    context.fillStyle = colour('--muted');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const every = STEPS.find((step) => step * row >= 13) ?? this.order.length;
    this.order.forEach((at, place) => {
      if (place % every === 0 && (place + 0.5) * row < frame.height) {
        context.fillText(label(at), frame.first - 6, Math.max(6, (place + 0.5) * row), frame.first - 8);
      }
    });
    context.fillStyle = colour('--warn');
    context.textAlign = 'left';
    this.order.forEach((at, place) => {
      if (!partitions[at].hot) return;
      const middle = (place + 0.5) * row;
      context.beginPath();
      context.moveTo(frame.right + 4, middle);
      context.lineTo(frame.right + 12, middle - 4);
      context.lineTo(frame.right + 12, middle + 4);
      context.fill();
    });
    this.paintTimes(context, frame, times, columns.length);
  }

  paintCells(context, frame) {
    const { columns } = this.heat;
    const many = this.order.length;
    const lines = Math.min(many, Math.max(1, Math.floor(frame.height)));
    const image = new ImageData(columns.length, lines);
    const pixels = new Uint32Array(image.data.buffer);
    const ramp = this.ramp();
    // Steeper than a straight line at its foot: one hot partition must not turn all the others pale.
    const shade = (lag) => ramp[Math.round(255 * (lag / Math.max(1, this.max)) ** 0.45)];
    columns.forEach((column, x) => {
      for (let line = 0; line < lines; line += 1) {
        const worst = this.worstOf(column, Math.floor((line * many) / lines), Math.floor(((line + 1) * many) / lines));
        if (worst >= 0) pixels[line * columns.length + x] = shade(worst);
      }
    });
    this.image ??= document.createElement('canvas');
    this.image.width = columns.length;
    this.image.height = lines;
    this.image.getContext('2d').putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, frame.left, 0, frame.cell * columns.length, frame.height);
    // Before the first moment the rows go on, pale, to their names.
    context.fillStyle = colour('--sunk');
    context.fillRect(frame.first, 0, frame.left - frame.first, frame.height);
    const row = frame.height / many;
    if (row < 6) return;
    context.fillStyle = colour('--surface');
    for (let place = 1; place < many; place += 1) context.fillRect(frame.first, place * row - 0.5, frame.right - frame.first, 1);
  }

  worstOf(column, from, to) {
    let worst = -1;
    for (let place = from; place < to; place += 1) {
      const lag = column[this.order[place]];
      if (lag > worst && lag !== null) worst = lag;
    }
    return worst;
  }

  paintTimes(context, frame, times, many) {
    context.fillStyle = colour('--muted');
    context.textBaseline = 'alphabetic';
    const base = frame.height + 15;
    const place = (at) => frame.left + (at + 0.5) * frame.cell;
    context.textAlign = 'left';
    if ((frame.right - frame.left) > 150) context.fillText(clockTime(times[0]), frame.left, base);
    context.textAlign = 'right';
    context.fillText(clockTime(times.at(-1)), frame.right, base);
    context.textAlign = 'center';
    const middle = Math.floor(many / 2);
    if (frame.right - frame.left > 420 && many > 40) context.fillText(clockTime(times[middle]), place(middle), base);
    // A break in the measuring is a line: the moments on its sides do not follow each other.
    context.fillStyle = colour('--text');
    for (let at = 1; at < many; at += 1) {
      if (Date.parse(times[at]) - Date.parse(times[at - 1]) > 60_000) context.fillRect(frame.left + at * frame.cell - 0.5, 0, 1, frame.height);
    }
  }

  ramp() {
    const theme = document.documentElement.dataset.theme;
    if (this.rampOf === theme) return this.colours;
    const stops = ['--heat-0', '--heat-1', '--heat-2', '--heat-3'].map((name) => parse(colour(name)));
    this.colours = new Uint32Array(256);
    for (let at = 0; at < 256; at += 1) {
      const place = (at / 255) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(place));
      const mix = (k) => Math.round(stops[low][k] + (stops[low + 1][k] - stops[low][k]) * (place - low));
      this.colours[at] = ((255 << 24) | (mix(2) << 16) | (mix(1) << 8) | mix(0)) >>> 0;
    }
    this.rampOf = theme;
    return this.colours;
  }

  cellAt(x, y) {
    if (!this.plot.size || !this.order.length) return null;
    const frame = this.frame(this.plot.size);
    const column = Math.floor((x - frame.left) / frame.cell);
    if (column < 0 || column >= this.heat.columns.length || y < 0 || y >= frame.height) return null;
    const many = this.order.length;
    const line = Math.floor(y);
    const from = Math.floor((line * many) / frame.height);
    const to = Math.max(from + 1, Math.floor(((line + 1) * many) / frame.height));
    let row = from;
    for (let place = from; place < Math.min(to, many); place += 1) {
      if ((this.heat.columns[column][this.order[place]] ?? -1) > (this.heat.columns[column][this.order[row]] ?? -1)) row = place;
    }
    return { column, row };
  }

  boxOf({ column, row }) {
    const frame = this.frame(this.plot.size);
    const high = frame.height / this.order.length;
    return { x: frame.left + column * frame.cell, y: row * high, width: Math.max(3, frame.cell), height: Math.max(3, high) };
  }

  say({ column, row }) {
    const at = this.order[row];
    const one = this.heat.partitions[at];
    const lag = this.heat.columns[column][at];
    const newest = column === this.heat.columns.length - 1;
    const behind = newest && one.seconds_behind !== null ? `${span(one.seconds_behind)} behind` : null;
    const moment = `${clockTime(this.heat.times[column])}, ${ago(this.heat.times[column])}`;
    return [nameOf(one), lag === null ? 'not measured' : `lag ${count(lag)}`, behind, moment, one.hot ? 'hot' : null].filter(Boolean);
  }
}

function parse(hex) {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

function makeRow() {
  return h('tr', {}, h('th', { scope: 'row' }), ...['num', 'num', 'num', 'num', ''].map((kind) => h('td', { class: kind })));
}

function updateRow(row, one) {
  const words = [nameOf(one), count(one.committed), count(one.end), count(one.lag), one.lag === 0 ? 'caught up' : span(one.seconds_behind), one.hot ? '▲ hot' : ''];
  words.forEach((word, at) => text(row.children[at], word || (at === 5 ? '' : NONE)));
}
