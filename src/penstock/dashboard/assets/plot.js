// A canvas that is sharp on any screen, drawn only when something changed, with a cursor for pointer and keyboard.
// A chart gives draw(context, size), columns and rows of its cells, cellAt(x, y) and boxOf(cell), and say(cell).

import { attr, h, text } from './dom.js';

let colours = new Map();
document.addEventListener('themechange', () => (colours = new Map()));

/** A colour of the theme, by the name of its property. */
export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

export class Plot {
  constructor({ label, kind, draw, grid, cellAt, boxOf, say }) {
    Object.assign(this, { draw, grid, cellAt, boxOf, say });
    this.cell = null;
    this.canvas = h('canvas', { 'aria-hidden': 'true' });
    this.cursor = h('div', { class: 'plot-cursor', hidden: true });
    this.tip = h('div', { class: 'plot-tip', hidden: true, 'aria-hidden': 'true' });
    this.heard = h('span', { class: 'sr', 'aria-live': 'polite' });
    this.area = h(
      'div',
      {
        class: 'plot', tabindex: '0', role: 'application', 'aria-roledescription': kind, 'aria-label': label,
        onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
        onpointerleave: () => this.leave(), onblur: () => this.leave(), onkeydown: (event) => this.key(event),
        onfocus: () => this.area.matches(':focus-visible') && this.move(this.cell ?? this.last()),
      },
      this.canvas, this.cursor, this.tip,
    );
    this.element = h('div', { class: 'plot-frame' }, this.area, this.heard);
    this.sized = new ResizeObserver(() => this.redraw());
    this.sized.observe(this.area);
    this.themed = () => this.redraw();
    document.addEventListener('themechange', this.themed);
  }

  close() {
    this.sized.disconnect();
    document.removeEventListener('themechange', this.themed);
  }

  setLabel(words) {
    attr(this.area, 'aria-label', words);
  }

  redraw() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      this.paint();
    });
  }

  paint() {
    const width = this.area.clientWidth;
    const height = this.area.clientHeight;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.size = { width, height };
    this.draw(context, this.size);
    if (this.cell) this.place();
  }

  last() {
    const { columns } = this.grid();
    return columns ? { column: columns - 1, row: 0 } : null;
  }

  point(event) {
    const box = this.area.getBoundingClientRect();
    const cell = this.cellAt(event.clientX - box.left, event.clientY - box.top);
    if (cell) this.move(cell, false);
    else this.leave();
  }

  key(event) {
    const { columns, rows } = this.grid();
    if (!columns || event.ctrlKey || event.metaKey || event.altKey) return;
    const { column, row } = this.cell ?? this.last();
    const steps = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      PageUp: [0, -10], PageDown: [0, 10], Home: [-columns, 0], End: [columns, 0],
    };
    if (event.key === 'Escape') this.leave();
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (value, many) => Math.min(many - 1, Math.max(0, value));
    this.move({ column: within(column + step[0], columns), row: within(row + step[1], rows) });
  }

  move(cell, aloud = true) {
    if (!cell) return;
    this.cell = cell;
    this.place();
    if (aloud) text(this.heard, this.tip.innerText.replaceAll('\n', ', '));
  }

  leave() {
    this.cell = null;
    this.cursor.hidden = this.tip.hidden = true;
  }

  place() {
    const { columns, rows } = this.grid();
    if (!this.size || !this.cell || this.cell.column >= columns || this.cell.row >= rows) return this.leave();
    const box = this.boxOf(this.cell);
    this.cursor.hidden = this.tip.hidden = false;
    put(this.cursor, { left: box.x, top: box.y, width: box.width, height: box.height });
    this.tip.replaceChildren(...this.say(this.cell).map((line, number) => h(number ? 'span' : 'strong', {}, line)));
    const { offsetWidth: wide, offsetHeight: high } = this.tip;
    const right = box.x + box.width + 10;
    const left = right + wide > this.size.width ? box.x - wide - 10 : right;
    const top = Math.min(box.y, this.size.height - high);
    put(this.tip, { left: Math.max(0, left), top: Math.max(0, top) });
  }
}

function put(node, places) {
  for (const [name, value] of Object.entries(places)) node.style[name] = `${value}px`;
}
