// The pipeline as a picture: what it reads, decodes, transforms and writes, with the rates of the last minute on the arrows.
// From left to right where there is room, from the top down where there is not. Steps in a row stand in one box.

import { attr, h, list, svg, text } from './dom.js';
import { count, rate } from './format.js';
import { panel } from './panel.js';

const NARROWEST = 128;
const WIDEST = 250;
const LABEL = 92;
const HIGH = 74;
const STEP = 20;
const DETAIL = 18;
const BETWEEN = 22;
const RAIL = 18;
const KINDS = { source: 'reads', decode: 'decodes', transform: 'transforms', quarantine: 'sets aside', sink: 'writes' };

export class FlowPanel {
  constructor() {
    this.panel = panel('flow', 'Flow');
    this.panel.remark('rows a second over the last minute');
    this.lines = svg('svg', { class: 'flow-lines', 'aria-hidden': 'true', focusable: 'false' });
    this.lines.append(svg('g'));
    this.boxes = h('ul', { class: 'flow-boxes', 'aria-label': 'Parts of the pipeline' });
    this.said = h('ul', { class: 'sr', 'aria-label': 'Rates between the parts' });
    this.place = h('div', { class: 'flow' }, this.lines, this.boxes);
    this.empty = h('p', { class: 'none' }, 'The parts are not known yet.');
    this.panel.body.append(this.empty, this.place, this.said);
    this.element = this.panel.element;
    this.sized = new ResizeObserver(() => this.flow && this.draw());
    this.sized.observe(this.place);
  }

  close() {
    this.sized.disconnect();
  }

  update({ flow, state }) {
    this.flow = flow?.nodes?.length ? grouped(flow) : null;
    this.empty.hidden = this.flow !== null;
    this.place.hidden = this.flow === null;
    attr(this.place, 'data-still', state !== 'running');
    if (this.flow) this.draw();
  }

  draw() {
    const width = this.place.clientWidth;
    if (!width) return;
    const { nodes, edges } = this.flow;
    const columns = layers(nodes, edges);
    const across = columns.length * NARROWEST + (columns.length - 1) * LABEL <= width;
    const { boxes, height } = across ? sideBySide(columns, width) : topDown(columns.flat(), edges, width);
    this.place.style.height = `${height}px`;
    attr(this.lines, 'viewBox', `0 0 ${width} ${height}`);
    list(this.boxes, nodes, (node) => node.id, makeBox, (node, item) => updateBox(node, item, boxes.get(item.id)));
    const most = Math.max(...edges.map((edge) => edge.rate ?? 0), 1);
    list(
      this.lines.firstChild, edges, (edge) => `${edge.from} ${edge.to}`, makeEdge,
      (node, edge) => updateEdge(node, edge, across ? curve(boxes, edge) : rail(boxes, edge), most, nodes),
    );
    const titles = new Map(nodes.map((node) => [node.id, titleOf(node)]));
    list(this.said, edges, (edge) => `${edge.from} ${edge.to}`, () => h('li'), (node, edge) =>
      text(node, `${titles.get(edge.from)} to ${titles.get(edge.to)}: ${edge.rate === null ? 'rate not known' : `${rate(edge.rate)} rows`}`));
  }
}

function titleOf(node) {
  return node.steps ? node.steps.map((step) => step.title).join(', ') : node.title;
}

/** Transforms that follow each other, with nothing branching off between them, become one node with steps. */
function grouped({ nodes, edges }) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  // What is set aside on the way does not part the steps.
  const out = (id) => edges.filter((edge) => edge.from === id && byId.get(edge.to)?.kind !== 'quarantine');
  const into = (id) => edges.filter((edge) => edge.to === id);
  const home = new Map();
  const kept = [];
  for (const node of nodes) {
    const before = into(node.id);
    const only = before.length === 1 ? byId.get(before[0].from) : null;
    if (node.kind === 'transform' && only?.kind === 'transform' && out(only.id).length === 1) {
      const group = home.get(only.id);
      group.steps.push(node);
      group.total = node.total;
      home.set(node.id, group);
    } else {
      const group = node.kind === 'transform' ? { ...node, steps: [node] } : { ...node };
      home.set(node.id, group);
      kept.push(group);
    }
  }
  const joined = new Map();
  for (const edge of edges) {
    const [from, to] = [home.get(edge.from)?.id, home.get(edge.to)?.id];
    if (from && to && from !== to) joined.set(`${from} ${to}`, { from, to, rate: edge.rate });
  }
  return { nodes: kept, edges: [...joined.values()] };
}

/** Columns from the sources on; the sinks stand together in the last one, and the quarantine is the lowest of its column. */
function layers(nodes, edges) {
  const depth = new Map(nodes.map((node) => [node.id, 0]));
  const aside = new Set(nodes.filter((node) => node.kind === 'quarantine').map((node) => node.id));
  const onward = edges.filter((edge) => !aside.has(edge.to));
  for (let round = 0; round < nodes.length; round += 1) {
    for (const { from, to } of onward) depth.set(to, Math.max(depth.get(to), Math.min(depth.get(from) + 1, nodes.length)));
  }
  const deepest = Math.max(...nodes.map((node) => depth.get(node.id)));
  for (const node of nodes) if (node.kind === 'sink') depth.set(node.id, deepest);
  for (const id of aside) {
    const earliest = Math.min(...edges.filter((edge) => edge.to === id).map((edge) => depth.get(edge.from)));
    depth.set(id, Math.min(deepest, Number.isFinite(earliest) ? earliest + 1 : deepest));
  }
  const columns = Array.from({ length: deepest + 1 }, () => []);
  for (const node of nodes) columns[depth.get(node.id)].push(node);
  for (const column of columns) column.sort((a, b) => Number(a.kind === 'quarantine') - Number(b.kind === 'quarantine'));
  return columns.filter((column) => column.length);
}

const hasTotal = (node) => node.total !== null && node.total !== undefined;
const highOf = (node) => HIGH - (hasTotal(node) ? 0 : STEP - 2) + (node.steps ? (node.steps.length - 1) * STEP : node.detail ? DETAIL : 0);

function sideBySide(columns, width) {
  const wide = Math.min(WIDEST, (width - (columns.length - 1) * LABEL) / columns.length);
  const gap = columns.length > 1 ? (width - wide * columns.length) / (columns.length - 1) : 0;
  // The quarantine hangs below the main line: a column's middle is that of its other nodes.
  const main = (column) => column.filter((node) => node.kind !== 'quarantine');
  const tall = (list) => list.reduce((sum, node) => sum + highOf(node) + BETWEEN, -BETWEEN);
  const above = Math.max(...columns.map((column) => Math.max(0, tall(main(column)))));
  const boxes = new Map();
  let height = above;
  columns.forEach((column, number) => {
    let y = main(column).length ? (above - tall(main(column))) / 2 : above / 2;
    for (const node of column) {
      if (node.kind === 'quarantine') y = Math.max(y, above / 2 + (HIGH + DETAIL) / 2 + BETWEEN);
      boxes.set(node.id, { x: number * (wide + gap), y, width: wide, height: highOf(node) });
      y += highOf(node) + BETWEEN;
    }
    height = Math.max(height, y - BETWEEN);
  });
  return { boxes, height: height + 4 };
}

function topDown(nodes, edges, width) {
  const boxes = new Map();
  const sinks = nodes.filter((node) => node.kind === 'sink').length;
  const main = nodes.filter((node) => node.kind !== 'quarantine');
  const order = [...main];
  for (const node of nodes.filter((one) => one.kind === 'quarantine')) {
    // Below the last of those that set aside, so that every arrow points down.
    const last = Math.max(...edges.filter((edge) => edge.to === node.id).map((edge) => main.findIndex((one) => one.id === edge.from)));
    order.splice(Math.max(0, last) + 1, 0, node);
  }
  let y = 0;
  for (const node of order) {
    const branch = node.kind === 'quarantine' || (node.kind === 'sink' && sinks > 1);
    const x = branch ? RAIL * 2 : 0;
    boxes.set(node.id, { x, y, width: width - x, height: highOf(node), branch });
    y += highOf(node) + 32;
  }
  return { boxes, height: y - 28 };
}

function curve(boxes, edge) {
  const [from, to] = [boxes.get(edge.from), boxes.get(edge.to)];
  if (to.x < from.x + from.width) return below(from, to);
  const start = [from.x + from.width, from.y + from.height / 2];
  const end = [to.x - 9, to.y + to.height / 2];
  const bend = (end[0] - start[0]) / 2;
  const path = `M${start}C${start[0] + bend} ${start[1]} ${end[0] - bend} ${end[1]} ${end}`;
  const tip = `M${end[0] + 1} ${end[1] - 5}l8 5l-8 5z`;
  const climb = end[1] - start[1];
  if (Math.abs(climb) < 16) return { path, tip, x: (start[0] + end[0]) / 2, y: Math.min(start[1], end[1]) - 11, anchor: 'middle' };
  // Arrows that leave one box together are told apart at their ends, on the side that the line does not come from.
  return { path, tip, x: end[0], y: climb > 0 ? end[1] + 20 : end[1] - 12, anchor: 'end' };
}

/** To a box in the same column, or an earlier one: out at the bottom. */
function below(from, to) {
  const foot = [from.x + from.width / 2, from.y + from.height];
  if (to.x === from.x) {
    const end = to.y - 9;
    return { path: `M${foot}V${end}`, tip: `M${foot[0] - 5} ${end + 1}l5 8l5-8z`, x: foot[0] + 10, y: end - 2, anchor: 'start' };
  }
  const end = [to.x + to.width + 9, to.y + to.height / 2];
  return { path: `M${foot}C${foot[0]} ${end[1]} ${foot[0]} ${end[1]} ${end}`, tip: `M${end[0] - 1} ${end[1] - 5}l-8 5l8 5z`, x: end[0] + 8, y: end[1] - 8, anchor: 'start' };
}

function rail(boxes, edge) {
  const [from, to] = [boxes.get(edge.from), boxes.get(edge.to)];
  const x = from.x + RAIL;
  const top = from.y + from.height;
  if (to.branch && !from.branch) {
    const y = to.y + to.height / 2;
    return { path: `M${x} ${top}V${y - 8}q0 8 8 8H${to.x - 9}`, tip: `M${to.x - 8} ${y - 5}l8 5l-8 5z`, x: x + 12, y: to.y - 11, anchor: 'start' };
  }
  return { path: `M${x} ${top}V${to.y - 9}`, tip: `M${x - 5} ${to.y - 8}l5 8l5-8z`, x: x + 12, y: to.y - 11, anchor: 'start' };
}

function makeEdge() {
  return svg('g', {}, svg('path', { class: 'edge' }), svg('path', { class: 'edge-move' }), svg('path', { class: 'edge-tip' }), svg('text', { class: 'edge-rate' }));
}

function updateEdge(node, edge, shape, most, nodes) {
  const [line, moving, tip, label] = node.children;
  const aside = nodes.find((one) => one.id === edge.to)?.kind === 'quarantine';
  const known = edge.rate !== null && edge.rate !== undefined;
  attr(node, 'class', `${aside ? 'aside' : ''} ${edge.rate > 0 ? 'moves' : known ? 'rests' : 'unknown'}`.trim());
  attr(line, 'd', shape.path);
  attr(moving, 'd', shape.path);
  attr(tip, 'd', shape.tip);
  const wide = known && edge.rate > 0 ? 2 + 7 * Math.sqrt(edge.rate / most) : 1.5;
  attr(line, 'stroke-width', wide.toFixed(1));
  attr(moving, 'stroke-width', Math.max(1.5, wide * 0.35).toFixed(1));
  // Only a rate of another size changes the pace: each change of it would make the movement jump.
  const pace = `${(3.2 - 0.4 * Math.min(6, Math.max(0, Math.round(Math.log10((edge.rate ?? 0) + 1))))).toFixed(1)}s`;
  if (moving.style.animationDuration !== pace) moving.style.animationDuration = pace;
  attr(label, 'x', shape.x.toFixed(1));
  attr(label, 'y', shape.y.toFixed(1));
  attr(label, 'text-anchor', shape.anchor);
  text(label, known ? rate(edge.rate) : '');
}

function makeBox(item) {
  return h('li', { class: `box ${item.kind}` }, h('span', { class: 'box-kind' }, KINDS[item.kind] ?? item.kind), h('div', { class: 'box-words' }), h('span', { class: 'box-total' }));
}

function updateBox(node, item, place) {
  for (const name of ['x', 'y', 'width', 'height']) {
    const property = { x: 'left', y: 'top' }[name] ?? name;
    const value = `${place[name].toFixed(1)}px`;
    if (node.style[property] !== value) node.style[property] = value;
  }
  const [, words, total] = node.children;
  const lines = item.steps ?? [item];
  attr(words, 'data-alone', !item.steps);
  list(
    words, lines, (step) => step.id, () => h('p', {}, h('strong'), ' ', h('span')),
    (line, step) => {
      text(line.children[0], step.title);
      text(line.children[1], step.detail);
      attr(line, 'title', `${step.title} ${step.detail ?? ''}`.trim());
    },
  );
  text(total, hasTotal(item) ? `${count(item.total)} rows` : '');
  attr(node, 'aria-label', `${KINDS[item.kind] ?? item.kind}: ${lines.map((step) => `${step.title} ${step.detail ?? ''}`).join(', ')}${hasTotal(item) ? `, ${count(item.total)} rows` : ''}`);
}
