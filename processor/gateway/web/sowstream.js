// The JavaScript client of the Sowstream gateway: one module without dependencies, for browsers and Node.
// Types: sowstream.d.ts. Protocol: processor/docs/reference/gateway.md.

const PROTOCOL = 'sowstream.v1';
const BACKOFF_MIN_MS = 250;
const BACKOFF_MAX_MS = 15000;
const SILENCE_MS = 30000;
const RENEW_SHARE = 0.8;

const LIVE = new Set(['subscribe', 'delta_subscribe', 'sow_and_subscribe', 'sow_and_delta_subscribe']);
const OPTIONS = {
  select: 'select', orderBy: 'order_by', top: 'top_n', topN: 'top_n', skip: 'skip_n', skipN: 'skip_n', oof: 'oof',
  noEmpties: 'no_empties', noSowkey: 'no_sowkey', sendKeys: 'send_keys', timestamp: 'timestamp',
  conflation: 'conflation', conflationKey: 'conflation_key',
};

export class SowstreamError extends Error {
  constructor(reason, detail, fields = {}) {
    super(detail || reason);
    this.name = 'SowstreamError';
    this.reason = reason;
    Object.assign(this, fields);
  }
}

/** Connect to a gateway. Resolves after the first logon; later the connection restores itself. */
export async function connect(settings) {
  const connection = new Connection(typeof settings === 'string' ? { url: settings } : settings);
  await connection.opened;
  return connection;
}

/** The options of a call, in AMPS' names. */
function wireOptions(options) {
  const wire = {};
  for (const [name, value] of Object.entries(options)) {
    if (name in OPTIONS) wire[OPTIONS[name]] = value === undefined ? null : value;
    else if (name !== 'filter') throw new SowstreamError('bad_request', `there is no option ${name}`);
  }
  return wire;
}

/** Merge a delta into a record, in place: objects merge, everything else replaces. */
export function merge(record, delta) {
  for (const name of Object.keys(delta)) {
    const value = delta[name];
    const held = Object.hasOwn(record, name) ? record[name] : undefined;
    if (isObject(value) && isObject(held)) merge(held, value);
    else Object.defineProperty(record, name, { value, writable: true, enumerable: true, configurable: true });
  }
  return record;
}

function isObject(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/**
 * The selected part of a value, by the rules of an ack; undefined if nothing is selected. An object that is excluded is
 * there if a member of it is selected; of an array each element is projected.
 */
function project(value, [included, members]) {
  if (Array.isArray(value)) {
    const parts = value.map((one) => project(one, [included, members])).filter((one) => one !== undefined);
    return included || parts.length ? parts : undefined;
  }
  if (!isObject(value)) return included ? value : undefined; // A text, a number: nothing is shared.
  const part = {};
  for (const name of Object.keys(value)) {
    const one = project(value[name], Object.hasOwn(members, name) ? members[name] : [included, {}]);
    if (one !== undefined) Object.defineProperty(part, name, { value: one, writable: true, enumerable: true, configurable: true });
  }
  return included || Object.keys(part).length ? part : undefined;
}

/** Remove the value at a JSON Pointer. */
function removeAt(record, pointer) {
  const path = pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
  const last = path.pop();
  let place = record;
  for (const name of path) {
    if (!isObject(place) || !Object.hasOwn(place, name)) return;
    place = place[name];
  }
  if (isObject(place)) delete place[last];
}

/** The JSON Pointers at which a delta has values. */
function pathsOf(delta, prefix = '', paths = []) {
  for (const name of Object.keys(delta)) {
    const path = `${prefix}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    if (isObject(delta[name]) && Object.keys(delta[name]).length) pathsOf(delta[name], path, paths);
    else paths.push(path);
  }
  return paths;
}

/** A queue that is iterated over asynchronously; it ends with `close`. */
class Channel {
  constructor(limit = 10000) {
    this.items = [];
    this.waiting = [];
    this.limit = limit;
    this.over = false;
    this.error = null;
  }

  put(item) {
    if (this.over) return;
    const taker = this.waiting.shift();
    if (taker) taker.resolve({ value: item, done: false });
    else if (this.items.length < this.limit) this.items.push(item);
    else this.close(new SowstreamError('too_slow', `${this.limit} items wait and are not taken`));
  }

  close(error = null) {
    if (this.over) return;
    this.over = true;
    this.error = error;
    for (const taker of this.waiting.splice(0)) error ? taker.reject(error) : taker.resolve({ value: undefined, done: true });
  }

  next() {
    if (this.items.length) return Promise.resolve({ value: this.items.shift(), done: false });
    if (this.over) return this.error ? Promise.reject(this.error) : Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  return() {
    this.close();
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator]() { return this; }
}

/** A connection to a gateway. Events: `state`, `error`. */
export class Connection extends EventTarget {
  #settings; #socket = null; #state = 'connecting'; #number = 0; #asked = new Map(); #subscriptions = new Map();
  #attempt = 0; #timer = null; #renewal = null; #watch = null; #heard = 0; #closed = false; #opened; #isOpen = false;

  constructor(settings) {
    super();
    this.#settings = { name: 'browser', backoffMin: BACKOFF_MIN_MS, backoffMax: BACKOFF_MAX_MS, ...settings };
    this.opened = new Promise((resolve, reject) => { this.#opened = { resolve, reject }; });
    this.opened.catch(() => {});
    this.#open();
  }

  /** `connecting`, `open`, `waiting` (to connect again) or `closed`. */
  get state() { return this.#state; }

  /** Publish a record; with `allowMerge` a delta, which is merged into it. Resolves with the ack. */
  publish(topic, data, options = {}) {
    const { allowMerge = false, ack, key, sequence, expiration, correlationId, expectVersion } = options;
    const fields = { topic, data, key, ack, sequence, expiration, correlation_id: correlationId, expect_version: expectVersion };
    return this.#ask(allowMerge ? 'delta_publish' : 'publish', fields, ack);
  }

  /** Merge changes into a record. */
  deltaPublish(topic, data, options = {}) { return this.publish(topic, data, { ...options, allowMerge: true }); }

  /** Delete a record by `key`, or by `data` with its key fields. */
  sowDelete(topic, { key, data, ack, expectVersion } = {}) {
    return this.#ask('sow_delete', { topic, key, data, ack, expect_version: expectVersion }, ack);
  }

  /** The records that match, as an array of messages. */
  async sow(topic, options = {}) {
    const subscription = new Subscription(this, 'sow', topic, options);
    const rows = [];
    this.#begin(subscription);
    for await (const message of subscription) if (message.command === 'sow') rows.push(message);
    return rows;
  }

  subscribe(topic, options, onMessage) { return this.#subscribe('subscribe', topic, options, onMessage); }
  deltaSubscribe(topic, options, onMessage) { return this.#subscribe('delta_subscribe', topic, options, onMessage); }
  sowAndSubscribe(topic, options, onMessage) { return this.#subscribe('sow_and_subscribe', topic, options, onMessage); }
  sowAndDeltaSubscribe(topic, options, onMessage) { return this.#subscribe('sow_and_delta_subscribe', topic, options, onMessage); }

  /** A live Map of the records that match. */
  view(topic, options = {}) {
    const view = new View(this, topic, options);
    this.#begin(view.subscription);
    return view;
  }

  /** The topics that this client may use. */
  async topics() {
    const url = new URL('/v1/topics', this.#settings.url.replace(/^ws/, 'http'));
    const token = await this.#token();
    const answer = await fetch(url, { headers: token ? { authorization: `Bearer ${token}` } : {} });
    const body = await answer.json();
    if (!answer.ok) throw new SowstreamError(body.reason || 'refused', body.detail);
    return body.topics;
  }

  /** End the connection and its subscriptions. */
  close() {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#renewal);
    clearInterval(this.#watch);
    this.#fail(new SowstreamError('closed', 'the connection was closed'));
    for (const subscription of this.#subscriptions.values()) subscription._end();
    this.#subscriptions.clear();
    if (this.#socket) this.#socket.close(1000);
    this.#move('closed');
  }

  // Of subscriptions.

  _replace(subscription, changes) {
    const options = wireOptions(changes);
    const fields = { sub: subscription.id, options };
    if ('filter' in changes) fields.filter = changes.filter ?? '';
    const change = () => {
      subscription.options = { ...subscription.options, ...changes };
      subscription.bookmark = null;
    };
    if (!this.#isOpen || !subscription.isAsked) { change(); return Promise.resolve(); }
    return this.#ask('replace', fields, undefined, undefined, subscription).then((ack) => { change(); return ack; });
  }

  _unsubscribe(subscription) {
    if (!this.#subscriptions.delete(subscription.id)) return;
    if (this.#isOpen && subscription.isAsked) this.#ask('unsubscribe', { sub: subscription.id }).catch(() => {});
    subscription._end();
  }

  /** Read a subscription again from its snapshot: a delta did not fit. */
  _again(subscription) {
    if (!this.#subscriptions.delete(subscription.id)) return;
    if (this.#isOpen) this.#ask('unsubscribe', { sub: subscription.id }).catch(() => {});
    subscription.bookmark = null;
    this.#begin(subscription);
  }

  #subscribe(op, topic, options = {}, onMessage = undefined) {
    const subscription = new Subscription(this, op, topic, options, onMessage);
    this.#begin(subscription);
    return subscription;
  }

  #begin(subscription) {
    if (this.#closed) throw new SowstreamError('closed', 'the connection is closed');
    subscription.id = `s${++this.#number}`;
    this.#subscriptions.set(subscription.id, subscription);
    if (this.#isOpen) this.#send(subscription);
  }

  #send(subscription) {
    const { op, topic, options, bookmark, id } = subscription;
    subscription.isAsked = true;
    const fields = { topic, options: wireOptions(options), filter: options.filter || undefined, resume: bookmark || undefined };
    for (const [name, value] of Object.entries(fields.options)) if (value === null) delete fields.options[name];
    subscription._asked(Boolean(bookmark));
    this.#ask(op, fields, undefined, id, subscription).then(
      () => subscription._accepted(),
      (error) => {
        if (error.reason === 'disconnected') return;
        this.#subscriptions.delete(id);
        subscription._end(error);
      },
    );
  }

  #ask(op, fields, ack = undefined, id = `r${++this.#number}`, subscription = undefined) {
    if (!this.#isOpen && op !== 'logon') {
      return Promise.reject(new SowstreamError('disconnected', 'there is no connection now'));
    }
    return new Promise((resolve, reject) => {
      const last = ack ? ack.split(',').map((one) => one.trim()).at(-1) : undefined;
      this.#asked.set(id, { resolve, reject, last, subscription });
      this.#socket.send(JSON.stringify({ op, id, ...fields }));
    });
  }

  #fail(error) {
    const asked = [...this.#asked.values()];
    this.#asked.clear();
    for (const one of asked) one.reject(error);
  }

  #move(state, detail = undefined) {
    this.#state = state;
    this.dispatchEvent(Object.assign(new Event('state'), { state, detail }));
  }

  async #token() {
    const { token } = this.#settings;
    return typeof token === 'function' ? token() : token;
  }

  #open() {
    if (this.#closed) return;
    this.#move('connecting');
    const Socket = this.#settings.WebSocket || globalThis.WebSocket;
    let socket;
    try {
      const url = new URL('/v1/ws', this.#settings.url);
      url.protocol = url.protocol.replace('http', 'ws');
      socket = new Socket(url.href, PROTOCOL);
    } catch (error) {
      this.#opened.reject(error);
      this.close();
      return;
    }
    this.#socket = socket;
    socket.onopen = () => this.#logOn(socket);
    socket.onmessage = (event) => { if (socket === this.#socket) this.#hear(event.data); };
    socket.onerror = () => {};
    socket.onclose = (event) => { if (socket === this.#socket) this.#lost(event.code, event.reason); };
  }

  async #logOn(socket) {
    try {
      const token = await this.#token();
      if (socket !== this.#socket || this.#closed) return;
      if (token) await this.#ask('logon', { token, client: this.#settings.name });
      if (socket !== this.#socket || this.#closed) return;
      this.#isOpen = true;
      this.#attempt = 0;
      this.#heard = Date.now();
      this.#renewLater(token);
      this.#watchSilence();
      this.#move('open');
      this.#opened.resolve(this);
      for (const subscription of this.#subscriptions.values()) this.#send(subscription);
    } catch (error) {
      if (this.#state === 'closed' || error.reason === 'disconnected') return;
      this.dispatchEvent(Object.assign(new Event('error'), { error }));
      if (typeof this.#settings.token !== 'function') {
        this.#opened.reject(error);
        this.close();
      } else socket.close();
    }
  }

  /** Renew a JSON Web Token before it expires, through the function that gives tokens. */
  #renewLater(token) {
    clearTimeout(this.#renewal);
    if (typeof this.#settings.token !== 'function' || !token) return;
    const seconds = this.#settings.renewAfter ?? secondsLeft(token) * RENEW_SHARE;
    if (!Number.isFinite(seconds)) return;
    this.#renewal = setTimeout(async () => {
      if (!this.#isOpen) return;
      try {
        const fresh = await this.#token();
        await this.#ask('logon', { token: fresh, client: this.#settings.name });
        this.#renewLater(fresh);
      } catch (error) {
        this.dispatchEvent(Object.assign(new Event('error'), { error }));
        if (this.#isOpen) this.#renewal = setTimeout(() => this.#renewLater(token), 1000);
      }
    }, Math.min(Math.max(seconds, 0.05) * 1000, 2 ** 31 - 1));
  }

  /** A connection on which nothing comes, not even the answer to a ping, is lost. */
  #watchSilence() {
    clearInterval(this.#watch);
    const limit = this.#settings.silence ?? SILENCE_MS;
    this.#watch = setInterval(() => {
      const silent = Date.now() - this.#heard;
      if (silent > limit * 2) this.#lost(1006, 'nothing came');
      else if (silent > limit && this.#isOpen) this.#ask('ping', {}).catch(() => {});
    }, limit / 2);
    this.#watch.unref?.();
  }

  #lost(code, reason) {
    if (this.#closed) return;
    const socket = this.#socket;
    this.#socket = null;
    this.#isOpen = false;
    clearInterval(this.#watch);
    clearTimeout(this.#renewal);
    try { socket?.close(); } catch { /* It is closed. */ }
    this.#fail(new SowstreamError('disconnected', reason || 'the connection was lost', { code }));
    for (const subscription of this.#subscriptions.values()) subscription.isAsked = false;
    // Full jitter: clients that lost one gateway do not come back at the same moment.
    const { backoffMin, backoffMax } = this.#settings;
    const wait = Math.random() * Math.min(backoffMax, backoffMin * 2 ** this.#attempt++);
    this.#move('waiting', { code, reason, wait });
    this.#timer = setTimeout(() => this.#open(), wait);
  }

  #hear(text) {
    this.#heard = Date.now();
    const tree = JSON.parse(text);
    const messages = Array.isArray(tree) ? tree : [tree];
    const touched = new Set();
    for (const message of messages) {
      if (message.op === 'ack') this.#answered(message);
      else if (message.op === 'ended') this.#ended(message);
      else {
        for (const id of message.subs || []) {
          const subscription = this.#subscriptions.get(id);
          if (subscription) {
            subscription._hear(subscription._own(message));
            touched.add(subscription);
          }
        }
        for (const [id, bookmark] of Object.entries(message.bookmarks || {})) {
          const subscription = this.#subscriptions.get(id);
          if (subscription) subscription.bookmark = bookmark;
        }
        for (const [id, count] of Object.entries(message.rows || {})) this.#subscriptions.get(id)?._count(count);
      }
    }
    for (const subscription of touched) subscription._settle();
  }

  #answered(message) {
    const asked = this.#asked.get(message.id);
    if (!asked) return;
    if (message.status === 'success' && asked.last && message.ack && message.ack !== asked.last) return;
    this.#asked.delete(message.id);
    if (message.status === 'success') {
      // Now, and not in the promise: its messages may be in the same frame.
      if (asked.subscription) asked.subscription.selected = message.select;
      asked.resolve(message);
    } else {
      const { reason, detail, line, column } = message;
      asked.reject(new SowstreamError(reason, detail, { line, column, ack: message }));
    }
  }

  #ended(message) {
    const subscription = this.#subscriptions.get(message.sub);
    this.#subscriptions.delete(message.sub);
    subscription?._end(new SowstreamError(message.reason, message.detail));
  }
}

/** The seconds until a JSON Web Token expires; NaN for other tokens. */
function secondsLeft(token) {
  try {
    const text = atob(token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'));
    return JSON.parse(text).exp - Date.now() / 1000;
  } catch { return NaN; }
}

/** The messages of one subscription: iterate over it, or give a function. */
export class Subscription {
  #channel = null; #connection; #onMessage; #hooks;

  constructor(connection, op, topic, options = {}, onMessage = undefined, hooks = {}) {
    wireOptions(options);
    Object.assign(this, { op, topic, options: { ...options }, id: '', bookmark: null, isAsked: false, isOver: false, selected: undefined });
    this.#connection = connection;
    this.#onMessage = onMessage;
    this.#hooks = hooks;
    this.accepted = new Promise((resolve, reject) => { this._accepts = { resolve, reject }; });
    this.accepted.catch(() => {});
    if (!onMessage && !hooks.hear) this.#channel = new Channel(op === 'sow' ? Infinity : undefined);
  }

  /** Change the filter or the options in one step. */
  replace(changes) { return this.#connection._replace(this, changes); }

  /** End it. */
  close() { this.#connection._unsubscribe(this); }

  [Symbol.asyncIterator]() {
    if (!this.#channel) throw new SowstreamError('bad_request', 'this subscription calls a function');
    const channel = this.#channel;
    return { next: () => channel.next(), return: () => { this.close(); return channel.return(); } };
  }

  _accepted() { this._accepts.resolve(this); }

  /** Its own part of a message: one that several subscriptions share has the fields of all of them, and is for all. */
  _own(message) {
    if (message.subs.length < 2 || !isObject(message.data)) return message;
    return { ...message, data: (this.selected ? project(message.data, this.selected) : structuredClone(message.data)) ?? {} };
  }

  _asked(resumes) { this.#hooks.asked?.(resumes); }
  _settle() { this.#hooks.settle?.(); }
  _count(rows) { this.#hooks.count?.(rows); }

  _hear(message) {
    if (this.#hooks.hear) this.#hooks.hear(message);
    else if (this.#onMessage) this.#onMessage(message);
    else this.#channel.put(message);
    if (message.command === 'group_end' && !LIVE.has(this.op)) {
      this.#connection._unsubscribe(this);
    }
  }

  _end(error = null) {
    if (this.isOver) return;
    this.isOver = true;
    if (error) this._accepts.reject(error);
    else this._accepts.resolve(this);
    this.#channel?.close(error);
    this.#hooks.end?.(error);
  }
}

/** A live Map of records by their SOW keys. Events: `change` with `changes`, `ready`, `rows`, `error`. */
export class View extends EventTarget {
  #records = new Map(); #versions = new Map(); #stale = null; #changes = []; #channels = new Set(); #connection; #ready;

  constructor(connection, topic, options = {}) {
    super();
    this.#connection = connection;
    const { oof = true, ...rest } = options;
    this.subscription = new Subscription(connection, 'sow_and_delta_subscribe', topic, { oof, ...rest }, undefined, {
      hear: (message) => this.#hear(message),
      settle: () => this.#settle(),
      count: (rows) => { this.rows = rows; this.dispatchEvent(new Event('rows')); },
      asked: (resumes) => { if (!resumes && this.#records.size) this.#stale = new Set(this.#records.keys()); },
      end: (error) => this.#end(error),
    });
    /** Of a window, the number of records that match, in it or not. */
    this.rows = undefined;
    /** Resolves when the first snapshot is complete. */
    this.ready = new Promise((resolve, reject) => { this.#ready = { resolve, reject }; });
    this.ready.catch(() => {});
  }

  get size() { return this.#records.size; }
  get topic() { return this.subscription.topic; }
  get(key) { return this.#records.get(key); }
  has(key) { return this.#records.has(key); }
  keys() { return this.#records.keys(); }
  values() { return this.#records.values(); }
  entries() { return this.#records.entries(); }
  forEach(call, self) { this.#records.forEach((record, key) => call.call(self, record, key, this)); }
  [Symbol.iterator]() { return this.#records.entries(); }

  /** The version of a record. */
  version(key) { return this.#versions.get(key); }

  /** The changes from now on: `{key, record, changed, removed, reason, type}`. */
  [Symbol.asyncIterator]() {
    const channel = new Channel();
    this.#channels.add(channel);
    return { next: () => channel.next(), return: () => { this.#channels.delete(channel); return channel.return(); } };
  }

  /** Change the filter or the options in one step: what leaves is removed, what enters is added. */
  replace(changes) { return this.subscription.replace(changes); }

  /** End it; the records stay. */
  close() { this.subscription.close(); }

  #hear(message) {
    const { command, sow_key: key } = message;
    if (command === 'group_begin' || command === 'refetch') this.#stale ??= new Set(this.#records.keys());
    else if (command === 'group_end') this.#complete();
    else if (command === 'oof') this.#remove(key, message.reason, message.data);
    else if (message.delta) this.#merge(key, message);
    else if (command === 'sow' || command === 'publish') this.#put(key, message);
  }

  #put(key, message) {
    this.#stale?.delete(key);
    const had = this.#records.get(key);
    this.#records.set(key, message.data);
    this.#versions.set(key, message.version);
    this.#changes.push({ type: had ? 'update' : 'add', key, record: message.data, changed: [''], removed: [], message });
  }

  #merge(key, message) {
    const record = this.#records.get(key);
    const version = this.#versions.get(key);
    const needed = this.subscription.options.noEmpties ? 0 : message.delta_base ?? 0;
    if (record === undefined || version < needed) {
      // A delta is missing: the records are read again.
      queueMicrotask(() => this.#connection._again(this.subscription));
      return;
    }
    merge(record, message.data);
    for (const path of message.removed || []) removeAt(record, path);
    this.#versions.set(key, message.version);
    this.#changes.push({ type: 'update', key, record, changed: pathsOf(message.data), removed: message.removed || [], message });
  }

  #remove(key, reason, last) {
    this.#stale?.delete(key);
    if (!this.#records.has(key)) return;
    const record = this.#records.get(key);
    this.#records.delete(key);
    this.#versions.delete(key);
    this.#changes.push({ type: 'remove', key, record, last, changed: [], removed: [], reason });
  }

  #complete() {
    const stale = this.#stale || [];
    this.#stale = null;
    for (const key of stale) this.#remove(key, 'refetch');
    this.#ready.resolve(this);
    this.dispatchEvent(new Event('ready'));
  }

  #settle() {
    const changes = this.#changes;
    if (!changes.length) return;
    this.#changes = [];
    for (const channel of this.#channels) for (const change of changes) channel.put(change);
    this.dispatchEvent(Object.assign(new Event('change'), { changes }));
  }

  #end(error) {
    this.#settle();
    if (error) {
      this.#ready.reject(error);
      this.dispatchEvent(Object.assign(new Event('error'), { error }));
    }
    for (const channel of this.#channels) channel.close(error);
    this.#channels.clear();
  }
}
