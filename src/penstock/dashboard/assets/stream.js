// The live connection: server-sent events, tried again for as long as the page is open.
// What it tells of itself: connecting, live, reconnecting, stopped (nobody answers), locked (the token is not taken any more).

const STOPPED_AFTER = 15_000;
const AGAIN_AFTER = 2_000;

export class Stream {
  constructor({ overview, detail, link }) {
    this.tell = { overview, detail };
    this.tellLink = link;
    this.source = null;
    this.again = null;
    this.lostAt = null;
    this.link = 'connecting';
    setInterval(() => {
      if (this.lostAt !== null && this.link === 'reconnecting' && Date.now() - this.lostAt > STOPPED_AFTER) this.set('stopped');
    }, 1000);
  }

  /** Everything's overview, and one pipeline's details where an id is given. */
  watch(id) {
    this.id = id;
    this.open();
  }

  open() {
    clearTimeout(this.again);
    this.source?.close();
    const source = new EventSource(this.id === null ? '/api/events' : `/api/events?pipeline=${encodeURIComponent(this.id)}`);
    this.source = source;
    source.addEventListener('open', () => this.set('live'));
    for (const name of ['overview', 'detail']) {
      source.addEventListener(name, (event) => {
        if (source !== this.source) return;
        this.set('live');
        this.tell[name](JSON.parse(event.data));
      });
    }
    source.addEventListener('error', () => {
      if (source !== this.source) return;
      this.lostAt ??= Date.now();
      if (this.link !== 'stopped' && this.link !== 'locked') this.set('reconnecting');
      // A browser tries again by itself after a break, but never after an answer that was not a stream.
      if (source.readyState === EventSource.CLOSED) this.ask();
    });
  }

  async ask() {
    try {
      const answer = await fetch('/api/overview');
      if (answer.status === 401) this.set('locked');
    } catch {
      // Nobody is there: the next try says the same.
    }
    clearTimeout(this.again);
    this.again = setTimeout(() => this.open(), AGAIN_AFTER);
  }

  set(link) {
    if (link === 'live') this.lostAt = null;
    if (link === this.link) return;
    this.link = link;
    this.tellLink(link);
  }
}
