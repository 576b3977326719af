// Lag of every partition over time, kept while the page is open: at most 120 columns, whatever comes.

export const COLUMNS = 120;

export class Heat {
  constructor() {
    this.partitions = [];
    this.times = [];
    this.columns = [];
    this.version = 0;
  }

  /** Take what an event brought: everything anew, or the columns behind the last one. */
  take(heat) {
    if (!heat) return;
    const before = this.partitions;
    this.partitions = heat.partitions;
    if (!heat.append) {
      this.times = [...heat.times];
      this.columns = [...heat.columns];
    } else {
      if (!sameOrder(before, heat.partitions)) this.reorder(before);
      const newest = this.times.at(-1) ?? '';
      heat.times.forEach((at, number) => {
        if (at <= newest) return;
        this.times.push(at);
        this.columns.push(heat.columns[number]);
      });
    }
    this.times.splice(0, this.times.length - COLUMNS);
    this.columns.splice(0, this.columns.length - COLUMNS);
    this.version += 1;
  }

  /** A topic that got partitions: the older columns know nothing of them. */
  reorder(before) {
    const places = new Map(before.map((one, place) => [nameOf(one), place]));
    const order = this.partitions.map((one) => places.get(nameOf(one)));
    this.columns = this.columns.map((column) => order.map((place) => (place === undefined ? null : column[place])));
  }

  get max() {
    let most = 0;
    for (const column of this.columns) for (const lag of column) if (lag > most) most = lag;
    return most;
  }

  get latest() {
    return this.columns.at(-1) ?? [];
  }
}

export function nameOf(partition) {
  return `${partition.topic}[${partition.partition}]`;
}

function sameOrder(a, b) {
  return a.length === b.length && a.every((one, place) => one.partition === b[place].partition && one.topic === b[place].topic);
}
