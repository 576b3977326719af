// What every part of a pipeline's page is made of: a section with a heading, a remark beside it, and a body.

import { h, text } from './dom.js';

export function panel(id, title) {
  const remark = h('p', { class: 'remark' });
  const body = h('div', { class: 'panel-body' });
  const element = h(
    'section', { class: 'panel', id, 'aria-labelledby': `${id}-title` },
    h('div', { class: 'panel-head' }, h('h2', { id: `${id}-title` }, title), remark),
    body,
  );
  return { element, body, remark: (words) => text(remark, words) };
}

/** Rows behind a disclosure: made when it is opened, and kept up to date only while it is. */
export class TableBehind {
  constructor(summary, columns) {
    this.body = h('tbody');
    this.rows = () => {};
    this.element = h(
      'details', { class: 'behind', ontoggle: () => this.update() },
      h('summary', {}, summary),
      h(
        'div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': summary },
        h('table', { class: 'plain' }, h('caption', { class: 'sr' }, summary), h('thead', {}, h('tr', {}, ...columns.map(([name, kind]) => h('th', { scope: 'col', class: kind }, name)))), this.body),
      ),
    );
  }

  update() {
    if (this.element.open) this.rows();
  }
}
