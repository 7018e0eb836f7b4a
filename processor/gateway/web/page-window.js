// The rows of a topic that the page can show: a window over the topic in its order, which follows the topic.
import { KEY, kindOf, shownText, valueAt } from './page-cells.js';

const ORDER_MS = 200;
const SPARE_ROWS = 20;
const ROWS_MAX = 4000;
const BUSY = 500; // With so many updates a second in the window the gateway folds those of each row …
const CALM = 200; // … until there are so few.
const CONFLATION = '100ms';

/**
 * A live window. Its order comes from the gateway, which alone compares every digit and values of all kinds. A picture of the
 * rows is one answer to a query, so that no row is missing in it and none is there twice. Changes that move no row go
 * into the picture at once; rows that may have moved keep the values of the picture until the next answer.
 */
export class LiveWindow {
  #connection; #topic; #query; #calls; #view; #isStale = true; #isReading = false; #isFollowing = false; #endPause = () => {}; #isClosed = false; #moved = new Set(); #places = new Map(); #pictured = ''; #conflation; #wasFolded = false; #asked = { first: 0, count: 100 };

  /**
   * @param {object} connection
   * @param {string} topic
   * @param {{filter: string, order: {path: string, isFalling: boolean, text: string}[], options: object}} query with `options`, of groups
   * @param {{rows: Function, changes: Function, error: Function}} calls called with a new picture, with changes, with an error
   */
  constructor(connection, topic, query, calls) {
    this.#connection = connection;
    this.#topic = topic;
    this.#query = query;
    this.#calls = calls;
    this.#open();
  }

  /** The picture: the index of its first row, its rows as `{key, record, version}`, and the query that it answers. */
  first = 0;
  rows = [];
  query = null;

  /** The number of records that match; undefined before the first answer. */
  total;

  get filter() { return this.#query.filter; }

  /** The order, `{path, isFalling, text}`; none: by key. */
  get order() { return this.#query.order; }

  /** True if the picture is of the rows and the query that were asked for last, and no change of their order is known. */
  get isSettled() { return !this.#isStale && !this.#isReading && this.#moved.size === 0 && this.#pictured === this.#wanted; }

  get #wanted() { return JSON.stringify(this.#range); }

  /** The words of the filter language for the order. */
  get orderBy() { return this.#query.order.map(({ text }) => text).join(', ') || KEY; }

  get #range() { return { ...this.#ordered, skip: this.#asked.first, top: this.#asked.count }; }

  get #ordered() { return { ...this.#query.options, filter: this.filter || undefined, orderBy: this.orderBy }; }

  #open() {
    const view = this.#view = this.#connection.view(this.#topic, { ...this.#range, timestamp: true, conflation: this.#conflation });
    view.addEventListener('change', ({ changes }) => this.#changed(changes));
    view.addEventListener('rows', () => { if (view.rows !== this.total) this.reread(); });
    view.addEventListener('ready', () => this.reread());
    view.addEventListener('error', ({ error }) => this.#calls.error(error));
  }

  /** Show rows `first` to `last`: the window moves if it has not got them. */
  show(first, last) {
    const end = this.#asked.first + this.#asked.count;
    if (first >= this.#asked.first && last < end) return;
    this.#asked = { first: Math.max(0, first - SPARE_ROWS), count: Math.min(ROWS_MAX, last - first + 1 + 2 * SPARE_ROWS) };
    this.#ask({ skip: this.#asked.first, top: this.#asked.count }).catch((error) => this.#calls.error(error));
    this.#endPause(); // Rows that come into sight do not wait.
    this.reread();
  }

  /** Ask another query, from its first row on; a wrong one changes nothing, and its error is thrown. */
  async replace(query) {
    const [before, asked] = [this.#query, this.#asked];
    const next = this.#query = { ...before, ...query };
    this.#asked = { first: 0, count: asked.count };
    try {
      if (this.#view.subscription.isOver) this.#open();
      else await this.#ask({ ...this.#range, filter: this.filter });
    } catch (error) {
      if (this.#query === next) [this.#query, this.#asked] = [before, asked];
      throw error;
    }
    this.reread();
  }

  /** Ask the view for other rows. One of groups begins anew, as the gateway replaces none: after a look whether it can. */
  async #ask(changes) {
    if (!this.#query.options?.projection) return this.#view.replace(changes);
    const [before, wanted] = [this.#view, this.#wanted];
    await this.#connection.sow(this.#topic, { ...this.#range, top: 1 });
    if (this.#isClosed || this.#view !== before || wanted !== this.#wanted) return undefined; // Another one begins.
    this.#open();
    return before.close();
  }

  /** Read the rows in their order as soon as may be; while they move, every 200 ms. */
  async reread() {
    this.#isStale = true;
    if (this.#isFollowing) return;
    this.#isFollowing = true;
    while (this.#isStale && !this.#isClosed && this.#connection.state === 'open') {
      this.#isStale = false;
      this.#isReading = true;
      const [range, wanted] = [this.#range, this.#wanted];
      const rows = await this.#connection.sow(this.#topic, range).catch(() => {
        this.#isStale ||= this.#connection.state === 'open' && !this.#view.subscription.isOver;
      });
      this.#isReading = false;
      if (rows && wanted !== this.#wanted) continue; // Others are wanted by now.
      if (rows && !this.#isClosed) this.#place(range, rows, wanted);
      await new Promise((done) => { this.#endPause = done; setTimeout(done, ORDER_MS); });
    }
    this.#isFollowing = false;
  }

  #place({ skip, top }, rows, wanted) {
    [this.first, this.#pictured, this.query] = [skip, wanted, this.#query];
    this.rows = rows.map(({ sow_key: key, data: record, version }) => ({ key, record, version }));
    this.#places = new Map(this.rows.map((row) => [row.key, row.record]));
    const end = skip + rows.length;
    this.total = rows.length < top && (rows.length || !skip) ? end : Math.max(this.#view.rows ?? this.total ?? 0, rows.length ? end : 0);
    for (const { key, version } of this.rows) if ((this.#view.version(key) ?? 0) <= version) this.#moved.delete(key);
    for (const key of this.#moved) if (!this.#view.has(key)) this.#moved.delete(key);
    if (this.#moved.size) this.#isStale = true;
    this.#calls.rows();
  }

  #changed(changes) {
    if (this.#isClosed) return;
    const moved = changes.filter(({ type, key, record }) => type !== 'update' || this.#mayMove(key, record));
    for (const { key } of moved) this.#moved.add(key);
    this.#calls.changes(changes);
    if (moved.length) this.reread();
    this.#calls.rows();
  }

  /** True if a record is not in the picture, or has other values there in the fields of the order. */
  #mayMove(key, record) {
    const before = this.#places.get(key);
    const isOther = (one, other) => kindOf(one) !== kindOf(other) || shownText(one) !== shownText(other);
    return !before || this.#query.order.some(({ path }) => isOther(valueAt(before, path), valueAt(record, path)));
  }

  /** Let the gateway send a row at most ten times a second while more updates come than anybody can see: called with those of each second. */
  async pace(updates) {
    const conflation = updates > (this.#conflation ? CALM : BUSY) ? CONFLATION : undefined;
    if (conflation === this.#conflation || this.#query.options?.projection) return;
    this.#conflation = conflation;
    this.#wasFolded ||= Boolean(conflation);
    if (!this.#view.subscription.isOver) await this.#view.replace({ conflation }).catch((error) => this.#calls.error(error));
  }

  /** True while the gateway folds the updates of each row. */
  get isFolded() { return Boolean(this.#conflation); }

  /** The number of updates in a change: once they have been folded, which may still come, the versions that it spans. */
  updatesIn({ base, message: { version, command } }) { return this.#wasFolded && command === 'publish' && base !== undefined ? version - base : 1; }

  /** The newest state of a row that stands in its place; of one that may have moved, that of the picture. */
  newest(row) {
    const version = this.#view.version(row.key) ?? 0;
    return this.#moved.has(row.key) || version <= row.version ? row : { record: this.#view.get(row.key), version };
  }

  /** All records that match, in the order. */
  readAll() { return this.#connection.sow(this.#topic, this.#ordered); }

  close() {
    this.#isClosed = true;
    this.#view.close();
  }
}
