// What is said in words: diagnosis, quarantine, flow decisions, the checkpoint against the tables, alerts and notices.

import { attr, h, list, setMark, text, time } from './dom.js';
import { clockTime, count, NONE, plural, showTime } from './format.js';
import { panel } from './panel.js';

export class DiagnosisPanel {
  constructor() {
    this.panel = panel('diagnosis', 'Diagnosis');
    this.none = h('p', { class: 'none' });
    this.causes = h('ol', { class: 'causes' });
    this.notes = h('ul', { class: 'notes' });
    this.panel.body.append(this.none, this.causes, this.notes);
    this.element = this.panel.element;
  }

  update({ diagnosis, unseen }) {
    const causes = diagnosis?.causes ?? [];
    const idle = diagnosis?.idle ?? null;
    this.none.hidden = causes.length > 0 && idle === null;
    this.causes.hidden = !causes.length;
    attr(this.element, 'data-slim', !causes.length);
    text(this.none, unseen.diagnosis ?? idle ?? 'Nothing is slow or stuck.');
    list(this.notes, diagnosis?.notes ?? [], (line) => line, () => h('li'), text);
    this.panel.remark(causes.length ? `${plural(causes.length, 'likely cause')}${causes.length > 1 ? ', the likeliest first' : ''}, checked at ${clockTime(diagnosis.at)}` : '');
    list(
      this.causes, causes, (cause) => cause.code,
      () => h('li', {}, h('h3'), h('code'), h('ul'), h('p', { class: 'change' }, h('strong', {}, 'Change'), ' ', h('span'))),
      (node, cause) => {
        const [title, code, evidence, change] = node.children;
        text(title, cause.summary);
        text(code, cause.code);
        list(evidence, cause.evidence, (line) => line, () => h('li'), text);
        text(change.lastChild, cause.change);
      },
    );
  }
}

export class QuarantinePanel {
  constructor() {
    this.panel = panel('quarantine', 'Quarantine by reason');
    this.none = h('p', { class: 'none' });
    this.codes = h('ul', { class: 'codes' });
    this.samples = h('ul', { class: 'samples', tabindex: '0', 'aria-label': 'Samples' });
    this.shown = h('details', { class: 'behind', open: true }, h('summary', {}, 'Samples, the newest of each reason first'), this.samples);
    this.panel.body.append(this.none, this.codes, this.shown);
    this.element = this.panel.element;
  }

  update({ quarantine, unseen }) {
    const codes = [...(quarantine?.by_code ?? [])].sort((a, b) => b.count - a.count);
    const samples = quarantine?.samples ?? [];
    const most = Math.max(...codes.map((one) => one.count), 1);
    this.none.hidden = codes.length + samples.length > 0;
    text(this.none, quarantine ? unseen.quarantine ?? 'Nothing is in quarantine.' : 'This pipeline has none: it stops at the first bad record.');
    this.codes.hidden = !codes.length;
    this.shown.hidden = !samples.length;
    const today = quarantine?.today;
    this.panel.remark(today === null || today === undefined ? '' : `${count(today)} today`);
    list(
      this.codes, codes, (one) => one.code,
      () => h('li', {}, h('code'), h('span', { class: 'bar', 'aria-hidden': 'true' }, h('span')), h('span', { class: 'n' })),
      (node, one) => {
        const [code, bar, many] = node.children;
        text(code, one.code);
        text(many, count(one.count));
        bar.firstChild.style.width = `${Math.max(1, (100 * one.count) / most).toFixed(1)}%`;
      },
    );
    list(this.samples, samples, (one) => `${one.topic} ${one.partition} ${one.offset} ${one.code}`, makeSample, updateSample);
  }
}

function makeSample() {
  return h(
    'li', {},
    h('p', { class: 'sample-head' }, h('code'), h('span', { class: 'where' }), h('span', { class: 'stage' }), time()),
    h('p', { class: 'sample-message' }),
    h('pre', { class: 'value' }),
  );
}

function updateSample(node, one) {
  const [head, message, value] = node.children;
  const [code, where, stage, at] = head.children;
  text(code, one.code);
  text(where, `${one.topic}[${one.partition}] offset ${count(one.offset)}`);
  text(stage, one.stage);
  showTime(at, one.at);
  text(message, one.message);
  text(value, one.value ?? 'null');
  attr(value, 'data-null', one.value === null || one.value === undefined);
}

const SHOWN = 6;

export class DecisionPanel {
  constructor() {
    this.panel = panel('decisions', 'Flow decisions');
    this.none = h('p', { class: 'none' });
    this.first = h('ol', { class: 'decisions' });
    this.rest = h('ol', { class: 'decisions', tabindex: '0', 'aria-label': 'Older decisions' });
    this.more = h('summary');
    this.older = h('details', { class: 'behind' }, this.more, this.rest);
    this.panel.body.append(this.none, this.first, this.older);
    this.element = this.panel.element;
  }

  update({ decisions, target, cap }) {
    const newest = [...(decisions ?? [])].sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : b.batch_id - a.batch_id));
    this.none.hidden = newest.length > 0;
    text(this.none, target?.fixed ? 'The cap is fixed by source.max_offsets.' : 'The cap has not been changed yet.');
    this.panel.remark(cap ? `cap now ${count(cap)} offsets` : '');
    const key = (one) => `${one.at} ${one.batch_id} ${one.cap}`;
    list(this.first, newest.slice(0, SHOWN), key, makeDecision, updateDecision);
    const rest = newest.slice(SHOWN);
    this.older.hidden = !rest.length;
    text(this.more, `${plural(rest.length, 'older decision')}`);
    list(this.rest, rest, key, makeDecision, updateDecision);
  }
}

function makeDecision() {
  return h('li', {}, h('p', { class: 'decision-head' }, h('span', { class: 'caps n' }), h('span', { class: 'word' }), h('span', { class: 'of' }), time()), h('p', { class: 'decision-text' }));
}

function updateDecision(node, one) {
  const [caps, word, of, at] = node.firstChild.children;
  const before = one.before;
  const sign = before === null || before === undefined ? '' : one.cap > before ? '▲ ' : one.cap < before ? '▼ ' : '= ';
  text(caps, before === null || before === undefined || before === one.cap ? `${sign}${count(one.cap)}` : `${sign}${count(before)} → ${count(one.cap)}`);
  text(word, String(one.reason).replaceAll('_', ' '));
  text(of, one.batch_id === null || one.batch_id === undefined ? '' : `after batch ${count(one.batch_id)}`);
  showTime(at, one.at);
  text(node.lastChild, one.text);
}

export class CheckpointPanel {
  constructor() {
    this.panel = panel('checkpoint', 'Checkpoint against the tables');
    this.none = h('p', { class: 'none' });
    this.words = h('p', { class: 'checkpoint-words' });
    this.body = h('tbody');
    this.table = h(
      'table', { class: 'plain sinks' },
      h('caption', { class: 'sr' }, 'What each sink has committed'),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Sink'), h('th', { scope: 'col', class: 'num' }, 'Batch'), h('th', { scope: 'col' }, 'Against the checkpoint'))),
      this.body,
    );
    this.findings = h('ul', { class: 'findings' });
    this.looked = h('p', { class: 'looked' }, 'checked at ', time());
    this.panel.body.append(this.none, this.words, this.table, this.findings, this.looked);
    this.element = this.panel.element;
  }

  update({ checkpoint, unseen }) {
    const known = checkpoint && (checkpoint.committed !== null || checkpoint.begun !== null || checkpoint.sinks?.length);
    this.none.hidden = Boolean(known);
    text(this.none, unseen.checkpoint ?? 'There is no checkpoint yet: the first run makes it.');
    this.words.hidden = this.table.hidden = this.looked.hidden = !known;
    showTime(this.looked.lastChild, checkpoint?.at);
    const sinks = checkpoint?.sinks ?? [];
    const differ = sinks.filter((sink) => sink.agrees === false).length;
    this.panel.remark(!known ? '' : differ ? `${plural(differ, 'sink')} ${differ === 1 ? 'differs' : 'differ'}` : sinks.some((sink) => sink.agrees) ? 'they agree' : '');
    if (known) {
      const committed = checkpoint.committed === null || checkpoint.committed === undefined ? 'No batch is committed' : `Batch ${count(checkpoint.committed)} is committed`;
      const begun = checkpoint.begun !== null && checkpoint.begun !== undefined && checkpoint.begun !== checkpoint.committed ? `, batch ${count(checkpoint.begun)} has begun` : '';
      text(this.words, `${committed}${begun}.`);
    }
    list(
      this.body, sinks, (sink) => sink.name,
      () => h('tr', {}, h('th', { scope: 'row' }), h('td', { class: 'num' }), h('td', {}, h('span', { class: 'm' }), h('span', { class: 'agrees' }), h('span', { class: 'note' }))),
      (row, sink) => {
        const [name, batch, cell] = row.children;
        const [shape, agrees, note] = cell.children;
        text(name, sink.name);
        text(batch, sink.batch_id === null || sink.batch_id === undefined ? NONE : count(sink.batch_id));
        setMark(shape, sink.agrees === true ? 'ok' : sink.agrees === false ? 'warn' : 'off');
        text(agrees, sink.agrees === true ? 'agrees' : sink.agrees === false ? 'differs' : 'not known');
        text(note, sink.note);
      },
    );
    list(
      this.findings, checkpoint?.findings ?? [], (one) => `${one.code} ${one.summary}`,
      () => h('li', {}, h('p', {}, h('code'), ' ', h('span')), h('p', { class: 'change' }, h('strong', {}, 'Way out'), ' ', h('span'))),
      (node, one) => {
        const [said, way] = node.children;
        text(said.firstChild, one.code);
        text(said.lastChild, one.summary);
        text(way.lastChild, one.way_out);
        way.hidden = !one.way_out;
      },
    );
  }
}

export class NewsPanel {
  constructor() {
    this.panel = panel('news', 'Alerts and notices');
    this.none = h('p', { class: 'none' }, 'None yet.');
    this.items = h('ol', { class: 'news', tabindex: '0', 'aria-label': 'Alerts and notices, the newest first' });
    this.panel.body.append(this.none, this.items);
    this.element = this.panel.element;
  }

  update({ alerts, notices }) {
    const news = [
      ...(alerts ?? []).map((one) => ({ ...one, word: one.state === 'firing' ? 'alert' : one.state, health: one.state === 'firing' ? 'warn' : 'ok', words: `${one.rule}: ${one.text}` })),
      ...(notices ?? []).map((one) => ({ ...one, word: 'notice', health: 'off', words: one.text })),
    ].sort((a, b) => (a.at < b.at ? 1 : -1));
    this.none.hidden = news.length > 0;
    const last = new Map();
    for (const one of alerts ?? []) if (!last.has(one.rule) || last.get(one.rule).at <= one.at) last.set(one.rule, one);
    const firing = [...last.values()].filter((one) => one.state === 'firing').length;
    this.panel.remark(firing ? `${plural(firing, 'alert')} firing` : '');
    list(
      this.items, news.slice(0, 40), (one) => `${one.at} ${one.word} ${one.words}`,
      () => h('li', {}, h('span', { class: 'm' }), h('span', { class: 'word' }), h('span', { class: 'words' }), time()),
      (node, one) => {
        const [shape, word, words, at] = node.children;
        setMark(shape, one.health);
        text(word, one.word);
        text(words, one.words);
        showTime(at, one.at);
      },
    );
  }
}
