// Elements and how they change: nothing is written that is already there, so nothing flickers and no selection is lost.
// Text enters by textContent alone: a value that looks like HTML is shown as it is.

const SVG = 'http://www.w3.org/2000/svg';
const kept = new WeakMap();

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else attr(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function text(node, value) {
  const words = value === null || value === undefined ? '' : String(value);
  if (node.textContent !== words) node.textContent = words;
  return node;
}

export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const words = value === true ? '' : String(value);
    if (node.getAttribute(name) !== words) node.setAttribute(name, words);
  }
  return node;
}

/** Children by key: kept where the key stays, moved only where the order changed, gone where the key is gone. */
export function list(parent, items, keyOf, make, patch) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  for (const item of items) {
    let key = String(keyOf(item));
    while (after.has(key)) key += '+';
    after.set(key, { node: before.get(key)?.node ?? make(item), item });
  }
  for (const [key, { node }] of before) if (!after.has(key)) node.remove();
  let place = parent.firstElementChild;
  for (const { node, item } of after.values()) {
    patch?.(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  kept.set(parent, after);
  if (focused && document.activeElement !== focused && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** A <time> that says how long ago, with the exact moment in its title; `tick` keeps it true. */
export function time() {
  return h('time', { class: 'ago' });
}

const SHAPES = {
  ok: 'M10 3.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 1 0 0-13z',
  warn: 'M10 2.5L18.5 17h-17z',
  bad: 'M3.5 3.5h13v13h-13z',
  off: 'M10 4.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z',
};

/** A mark whose shape says it too: a disc is fine, a triangle wants care, a square is wrong, a ring is not running. */
export function mark(health) {
  return svg(
    'svg',
    { class: `mark-${health} shape`, viewBox: '0 0 20 20', 'aria-hidden': 'true', focusable: 'false' },
    svg('path', { d: SHAPES[health] ?? SHAPES.off }),
  );
}

export function setMark(holder, health) {
  if (holder.dataset.health === health) return;
  holder.dataset.health = health;
  holder.replaceChildren(mark(health));
}
