// A line of the last lags, as wide as its place; its words are the number beside it.

import { attr, svg } from './dom.js';

const WIDTH = 100;
const HEIGHT = 24;

export function sparkline() {
  return svg(
    'svg',
    { class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' },
    svg('path', { class: 'spark-area' }),
    svg('path', { class: 'spark-line' }),
  );
}

export function drawSparkline(node, series) {
  const values = (series ?? []).map((value) => value ?? 0);
  if (values.length < 2) {
    for (const path of node.children) attr(path, 'd', null);
    return;
  }
  const most = Math.max(...values, 1);
  const step = WIDTH / (values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`);
  const line = `M${points.join('L')}`;
  attr(node.children[0], 'd', `${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`);
  attr(node.children[1], 'd', line);
}
