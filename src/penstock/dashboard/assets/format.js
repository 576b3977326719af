// Numbers and times in the reader's own locale. Nothing is `–`: a number that is not known is not a nought.

export const NONE = '–';
const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const upToTenth = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const hundredth = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const shortened = new Intl.NumberFormat(undefined, { notation: 'compact', maximumSignificantDigits: 3 });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });

let ahead = 0;

/** The server's clock is the one that its times are read against. */
export function setNow(at) {
  const told = Date.parse(at);
  if (Number.isFinite(told)) ahead = told - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function count(value) {
  return known(value) ? whole.format(value) : NONE;
}

/** Whole up to ten millions, 12.3M beyond. */
export function amount(value) {
  return known(value) && Math.abs(value) >= 10_000_000 ? shortened.format(value) : count(value);
}

/** For narrow places: 12.3M; the whole number belongs into a title. */
export function short(value) {
  if (!known(value)) return NONE;
  return Math.abs(value) < 10_000 ? whole.format(value) : shortened.format(value);
}

export function rate(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return '0/s';
  if (size < 0.1) return `<${tenth.format(0.1)}/s`;
  if (size < 10) return `${tenth.format(value)}/s`;
  return `${size < 1_000_000 ? whole.format(value) : shortened.format(value)}/s`;
}

export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 1) return `${whole.format(value * 1000)} ms`;
  if (value < 10) return `${hundredth.format(value)} s`;
  if (value < 100) return `${upToTenth.format(value)} s`;
  return span(value);
}

/** A length of time in at most two units: 45 s, 12 min 5 s, 3 h 20 min, 4 d 2 h. */
export function span(value) {
  if (!known(value)) return NONE;
  const all = Math.max(0, Math.round(value));
  const units = [['d', 86_400], ['h', 3600], ['min', 60], ['s', 1]];
  const first = units.findIndex(([, size]) => all >= size);
  if (first < 0) return '0 s';
  const parts = [];
  let left = all;
  for (const [name, size] of units.slice(first, first + 2)) {
    const many = Math.floor(left / size);
    left -= many * size;
    if (many) parts.push(`${whole.format(many)} ${name}`);
  }
  return parts.join(' ');
}

export function ago(at) {
  const past = (now() - Date.parse(at)) / 1000;
  if (!Number.isFinite(past)) return NONE;
  if (past < 1.5) return 'just now';
  if (past < 60) return `${whole.format(past)} s ago`;
  if (past < 3600) return `${whole.format(Math.floor(past / 60))} min ago`;
  if (past < 86_400) return `${span(Math.floor(past / 60) * 60)} ago`;
  return `${whole.format(Math.floor(past / 86_400))} d ago`;
}

export function exact(at) {
  const value = Date.parse(at);
  return Number.isFinite(value) ? moment.format(value) : '';
}

export function clockTime(at) {
  const value = Date.parse(at);
  return Number.isFinite(value) ? clock.format(value) : NONE;
}

export function showTime(node, at) {
  if (!at) {
    if (node.dateTime || !node.textContent) {
      node.removeAttribute('datetime');
      node.removeAttribute('title');
      node.textContent = NONE;
    }
    return;
  }
  if (node.dateTime !== at) {
    node.dateTime = at;
    node.title = exact(at);
  }
  const words = ago(at);
  if (node.textContent !== words) node.textContent = words;
}

/** Once a second: every relative time that stands on the page. */
export function tick() {
  for (const node of document.querySelectorAll('time.ago[datetime]')) showTime(node, node.dateTime);
}

export function plural(many, one, more = `${one}s`) {
  return `${count(many)} ${many === 1 ? one : more}`;
}
