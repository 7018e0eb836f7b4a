// The JavaScript client of the Sowstream gateway: one module without dependencies, for browsers and Node.
// Types: sowstream.d.ts. Protocol: processor/docs/reference/gateway.md.

const PROTOCOL = 'sowstream.v1';
const BACKOFF_MIN_MS = 250;
const BACKOFF_MAX_MS = 15000;
const SILENCE_MS = 15000;
const OPEN_TIMEOUT_MS = 15000;
const ANSWER_TIMEOUT_MS = 60000; // The gateway waits 30 s for a view before it answers.
const PATIENCE_MAX = 16;
const RENEW_SHARE = 0.8;
const WAITING_MAX = 10000; // Messages that a reader has not taken.
const NUMBERED_MAX = 10000; // Commands without an answer that are sent again.
const PUBLISH_TIMEOUT_MS = 300000; // So long one of them is sent again that the gateway does not take now.
// The reasons, and statuses of HTTP, that say "not now"; and those that no other attempt with this token can change.
const LATER = new Set(['disconnected', 'unavailable', 'too_many']);
const LATER_STATUS = new Set([429, 502, 503, 504]);
const REFUSED = new Set(['logon_failed', 'bad_request']);
const MESSAGE_BYTES = 1024 * 1024; // Of a gateway that does not say its own limit.
const DEPTH_MAX = 64;

const LIVE = new Set(['subscribe', 'delta_subscribe', 'sow_and_subscribe', 'sow_and_delta_subscribe']);
const OPTIONS = {
  select: 'select', orderBy: 'order_by', top: 'top_n', topN: 'top_n', skip: 'skip_n', skipN: 'skip_n', oof: 'oof',
  noEmpties: 'no_empties', noSowkey: 'no_sowkey', sendKeys: 'send_keys', timestamp: 'timestamp',
  conflation: 'conflation', conflationKey: 'conflation_key', grouping: 'grouping', projection: 'projection',
};

export class SowstreamError extends Error {
  constructor(reason, detail, fields = {}) {
    super(detail || reason);
    this.name = 'SowstreamError';
    this.reason = reason;
    Object.assign(this, fields);
  }
}

// JSON with every digit. An integer beyond 53 bits is a BigInt, another number that JavaScript does not hold a Decimal.

const SUSPECT = /-?\d[\d.]{15,}(?:e[-+]?\d+)?|-?(?:\d[\d.]*)?e[-+]?\d{3,}/gi;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const MARK = `number ${Math.random()}${Math.random()}`; // Nobody can write it into a record.

/** A number that JavaScript does not hold, such as 0.1234567890123456789: it prints and is sent with its digits. */
export class Decimal {
  constructor(text) {
    if (!decimal(text)) throw new SowstreamError('bad_request', `${text} is no number of JSON`);
    this.text = String(text);
    Object.freeze(this);
  }

  /** Negative, 0 or positive, as it is below, equal to or above another number of any type; NaN beside what is none. */
  compare(other) {
    const [one, two] = [decimal(this.text), decimal(String(other))];
    if (!two) return NaN;
    if (one.sign !== two.sign) return one.sign - two.sign;
    const far = one.digits.length + one.power - two.digits.length - two.power;
    const length = Math.max(one.digits.length, two.digits.length);
    const [left, right] = [one, two].map(({ digits }) => digits.padEnd(length, '0'));
    return one.sign * (far || (left < right ? -1 : Number(left > right))) || 0;
  }

  toString() { return this.text; }
  toJSON() { return this.text; }

  /** In `-`, `*` and `<` the nearest number; in texts, and with `+`, its text. */
  [Symbol.toPrimitive](hint) { return hint === 'number' ? Number(this.text) : this.text; }
}

/** The sign, digits and power of ten of a number's text, in one way for each value; undefined if it is none. */
function decimal(text) {
  const [all, minus, whole, part = '', power = 0] = /^(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:e([-+]?\d+))?$/i.exec(text) || [];
  if (all === undefined) return undefined;
  const long = (whole + part).replace(/^0+/, '');
  let end = long.length;
  while (long[end - 1] === '0') end -= 1; // The expression /0+$/ would look at each run of zeros again from each of them.
  const digits = long.slice(0, end);
  if (!digits) return { sign: 0, digits, power: 0 };
  return { sign: minus ? -1 : 1, digits, power: Number(power) - part.length + long.length - digits.length };
}

/** Whether a number stands for a literal: an integer within 53 bits, or a decimal of the same value. */
function isHeld(literal) {
  const number = Number(literal);
  if (!/[.e]/i.test(literal)) return Number.isSafeInteger(number);
  const text = String(number);
  if (text === literal || text === 'NaN') return true; // `1.2.3` is a part of a text.
  const [one, two] = [decimal(literal), decimal(text)]; // `00e123` is a part of a text, too.
  return Boolean(one && two) && one.digits === two.digits && one.power === two.power;
}

/** The value of a JSON text. */
export function parse(text) {
  if ([...text.matchAll(SUSPECT)].every(([literal]) => isHeld(literal))) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) => (token[0] === '"' || isHeld(token) ? token : `{"${MARK}":"${token}"}`));
  return JSON.parse(marked, (_, value) => {
    const literal = value?.[MARK];
    if (literal === undefined) return value;
    return /[.e]/i.test(literal) ? new Decimal(literal) : BigInt(literal);
  });
}

/** The JSON text of a value. Throws a SowstreamError with the JSON Pointer of a part that JSON does not have. */
export function stringify(value, place = '', depth = 0) {
  const refuse = (problem) => { throw new SowstreamError('undecodable', `${place || 'the value'}: ${problem}`); };
  const kind = typeof value;
  if (value === null || kind === 'boolean' || kind === 'bigint' || value instanceof Decimal) return String(value);
  if (kind === 'number') {
    if (!Number.isFinite(value)) refuse(`${value} is not a JSON value; leave it out, or publish null`);
    if (Object.is(value, -0)) return '-0.0';
    // Beyond 53 bits it is no integer of anybody's: those are BigInts.
    return Number.isInteger(value) && !Number.isSafeInteger(value) ? value.toExponential() : String(value);
  }
  if (kind === 'string') {
    if (/\p{Surrogate}/u.test(value)) refuse('half a surrogate pair is no text');
    return JSON.stringify(value);
  }
  if (kind !== 'object') refuse(`${kind} is not a JSON value; leave it out, or publish null`);
  if (depth >= DEPTH_MAX) refuse(`nested deeper than ${DEPTH_MAX} levels, or contains itself`);
  const step = (name) => `${place}/${String(name).replaceAll('~', '~0').replaceAll('/', '~1')}`;
  if (Array.isArray(value)) return `[${Array.from(value, (one, at) => stringify(one, step(at), depth + 1)).join()}]`;
  const origin = Object.getPrototypeOf(value);
  if (origin && Object.getPrototypeOf(origin)) refuse(`${origin.constructor?.name} is not a JSON value; publish its text or its fields`);
  return `{${Object.keys(value).map((name) => `${stringify(name, step(name))}:${stringify(value[name], step(name), depth + 1)}`).join()}}`;
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

/** Merge a delta into a record, in place: objects merge, everything else replaces. No object of the delta becomes a part of the record. */
export function merge(record, delta) {
  for (const name of Object.keys(delta)) {
    const value = delta[name];
    const held = Object.hasOwn(record, name) ? record[name] : undefined;
    if (isObject(value) && isObject(held)) merge(held, value);
    else Object.defineProperty(record, name, { value: copied(value), writable: true, enumerable: true, configurable: true });
  }
  return record;
}

const copied = (value) => (isObject(value) ? merge({}, value) : value);

function isObject(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !(value instanceof Decimal);
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

/** The JSON Pointers at which a delta has other values than a record. */
function changedPaths(delta, record, prefix = '', paths = []) {
  for (const [name, value] of Object.entries(delta)) {
    const path = `${prefix}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    const held = isObject(record) && Object.hasOwn(record, name) ? record[name] : undefined;
    if (isObject(value) && Object.keys(value).length) changedPaths(value, held, path, paths);
    else if (held === undefined || (value !== held && stringify(value) !== stringify(held))) paths.push(path);
  }
  return paths;
}

/** A queue that is iterated over asynchronously; it ends with `close`. */
class Channel {
  constructor() {
    this.items = [];
    this.waiting = [];
    this.over = false;
    this.error = null;
  }

  put(item) {
    if (this.over) return;
    const taker = this.waiting.shift();
    if (taker) taker.resolve({ value: item, done: false });
    else this.items.push(item);
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

/** The address of a path below the gateway's own, which a proxy may serve below a path and with a query. */
function addressOf(url, path) {
  const address = new URL(url, globalThis.location?.href);
  address.pathname = address.pathname.replace(/(\/v1\/ws)?\/*$/, '') + path;
  address.hash = '';
  return address;
}

const pause = (wait) => new Promise((done) => { setTimeout(done, wait); });

/**
 * A connection to a gateway, which restores itself. Events: `state`, `error`, `unavailable`.
 *
 * connecting ──▶ open ──▶ waiting ──▶ connecting …, until `close`, or until the gateway refuses the token: then closed.
 */
export class Connection extends EventTarget {
  #settings; #socket = null; #state = 'connecting'; #number = 0; #asked = new Map(); #subscriptions = new Map();
  #numbered = new Map(); #paused = new Map(); #attempts = new Map(); #attempt = 0; #timer = null; #limit = null; #renewal = null; #watch = null; #heard = 0;
  #openedAt = 0; #refusals = 0; #patience = 1; #closed = false; #opened; #isOpen = false;
  #messageBytes = MESSAGE_BYTES;

  constructor(settings) {
    super();
    this.#settings = {
      name: 'browser', backoffMin: BACKOFF_MIN_MS, backoffMax: BACKOFF_MAX_MS, silence: SILENCE_MS,
      openTimeout: OPEN_TIMEOUT_MS, answerTimeout: ANSWER_TIMEOUT_MS,
      publishTimeout: PUBLISH_TIMEOUT_MS, ...settings,
    };
    this.opened = new Promise((resolve, reject) => { this.#opened = { resolve, reject }; });
    this.opened.catch(() => {});
    this.#open();
  }

  /** `connecting`, `open`, `waiting` (to connect again) or `closed`. */
  get state() { return this.#state; }

  /** The time at which anything came from the gateway last, as of `Date.now()`. */
  get heardAt() { return this.#heard; }

  /**
   * Publish a record; with `allowMerge` a delta, which is merged into it. Resolves with the ack, whose `duplicate` is true
   * if nothing changed, as a command with its `sequence` had been taken before. With a `sequence` it is sent again after a
   * lost connection, until it is answered, and while the gateway does not take it now; those behind it wait. Without one it
   * fails with `disconnected`, as it may have been carried out.
   */
  publish(topic, data, options = {}) {
    const { allowMerge = false, ack, key, sequence, expiration, correlationId, expectVersion } = options;
    const fields = { topic, data, key, ack, sequence, expiration, correlation_id: correlationId, expect_version: expectVersion };
    return this.#command(allowMerge ? 'delta_publish' : 'publish', fields, ack);
  }

  /** Merge changes into a record. */
  deltaPublish(topic, data, options = {}) { return this.publish(topic, data, { ...options, allowMerge: true }); }

  /** Delete a record by `key`, or by `data` with its key fields. */
  sowDelete(topic, { key, data, ack, sequence, expectVersion } = {}) {
    return this.#command('sow_delete', { topic, key, data, ack, sequence, expect_version: expectVersion }, ack);
  }

  /** The records that match, as an array of messages. */
  async sow(topic, options = {}) {
    const subscription = new Subscription(this, 'sow', topic, options);
    let rows = [];
    this.#begin(subscription);
    for await (const message of subscription) {
      if (message.command === 'group_begin') rows = []; // Perhaps again, after a lost connection.
      else if (message.command === 'sow') rows.push(message);
    }
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

  /** The topics that this client may use. A gateway that is away is asked again. */
  async topics() { return (await this.#read('/v1/topics')).topics; }

  /** The status of the installation, for operators: what `sowstream status --json` prints. */
  async status() { return this.#read('/v1/status'); }

  /** The record of a key, or null. With `minVersion`, the version of an ack, it waits until the gateway has it. */
  async get(topic, key, { minVersion = 0 } = {}) {
    const path = `/v1/topics/${encodeURIComponent(topic)}/records/${encodeURIComponent(key)}`;
    return this.#read(path, minVersion ? { min_version: minVersion } : {});
  }

  /** The answer to a GET, which is repeated while the gateway is away; null: there is nothing there. */
  async #read(path, query = {}) {
    const url = addressOf(this.#settings.url, path);
    url.protocol = url.protocol.replace('ws', 'http');
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    for (let attempt = 0; ; attempt += 1) {
      const token = await this.#token();
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      let answer, body;
      try {
        answer = await fetch(url, { headers, signal: AbortSignal.timeout(this.#settings.openTimeout) });
        body = parse(await answer.text() || '{}');
        if (answer.ok) return body;
        if (answer.status === 404 && body.reason === 'not_found') return null;
      } catch { body = {}; }
      const error = new SowstreamError(body.reason || (answer ? 'refused' : 'unavailable'), body.detail, { code: answer?.status });
      if (this.#closed || body.reason === 'not_yet' || (answer && !LATER_STATUS.has(answer.status))) throw error;
      const wait = this.#backoff(attempt);
      this.#say('unavailable', { error, wait });
      await pause(wait);
    }
  }

  /** Ask for a sign of life. */
  async ping() { await this.#ask('ping', {}); }

  /** End the connection and its subscriptions. */
  close() { this.#end(); }

  // Of subscriptions.

  /** Change a subscription; a connection that is lost meanwhile is waited for. */
  _replace(subscription, changes) {
    const fields = { sub: '', options: wireOptions(changes) };
    if ('filter' in changes) fields.filter = changes.filter ?? '';
    const change = () => {
      subscription.options = { ...subscription.options, ...changes };
      subscription.bookmark = null;
    };
    const before = subscription.changing;
    if (!subscription.isKnown && !subscription.isAsked && !before) { change(); return Promise.resolve(); } // No gateway has it yet.
    const changed = (async () => {
      await before?.catch(() => {});
      for (let attempt = 0; ; attempt += 1) {
        const serving = subscription._accepted;
        await serving;
        if (subscription.isOver) throw new SowstreamError('closed', 'the subscription has ended');
        // It may have begun again meanwhile, under another id and as it was.
        const isServed = () => subscription._accepted === serving;
        try {
          const ack = await this.#ask('replace', { ...fields, sub: subscription.id }, undefined, undefined, subscription);
          if (!isServed()) continue;
          change();
          return ack;
        } catch (error) {
          if (!LATER.has(error.reason) && isServed()) throw error;
          if (error.reason !== 'disconnected') await pause(this.#backoff(attempt));
        }
      }
    })();
    changed.catch(() => {});
    return subscription.changing = changed;
  }

  _unsubscribe(subscription) {
    if (!this.#drop(subscription)) return;
    subscription._end();
  }

  /** Read a subscription again from its snapshot: a delta did not fit. */
  _again(subscription) {
    if (!this.#drop(subscription)) return;
    subscription.bookmark = null;
    this.#begin(subscription);
  }

  /** Stop a subscription whose reader is slow: its messages wait in the gateway, where those of a key are one. */
  _hold(subscription) {
    if (!this.#drop(subscription)) return;
    subscription.isHeld = true;
    this.#begin(subscription);
  }

  /** Go on with it from its bookmark. */
  _release(subscription) {
    subscription.isHeld = false;
    if (this.#isOpen) this.#send(subscription);
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

  /** Forget a subscription here and in the gateway. */
  #drop(subscription) {
    if (!this.#subscriptions.delete(subscription.id)) return false;
    if (this.#isOpen && subscription.isAsked) this.#ask('unsubscribe', { sub: subscription.id }).catch(() => {});
    subscription._lost();
    return true;
  }

  #send(subscription) {
    if (subscription.isHeld) return;
    const { op, topic, options, bookmark, id } = subscription;
    const fields = { topic, options: wireOptions(options), filter: options.filter || undefined, resume: bookmark || undefined };
    for (const [name, value] of Object.entries(fields.options)) if (value === null) delete fields.options[name];
    subscription._asked(Boolean(bookmark));
    this.#ask(op, fields, undefined, id, subscription).then(
      () => { this.#patience = 1; },
      (error) => { if (error.reason !== 'disconnected') this.#failed(subscription, id, error); },
    );
  }

  /** A subscription has failed, or ended: one that is not there yet is asked for again. */
  #failed(subscription, id, error) {
    if (this.#subscriptions.get(id) !== subscription) return;
    if (LATER.has(error.reason)) {
      const wait = this.#backoff(subscription.attempts++);
      subscription._lost();
      subscription.timer = setTimeout(() => { if (this.#isOpen) this.#send(subscription); }, wait);
      this.#say('unavailable', { error, wait, subscription });
    } else {
      this.#subscriptions.delete(id);
      subscription._end(error);
    }
  }

  /** Send a command; one with a number is kept, and sent again with each connection, until it is answered. */
  #command(op, fields, ack) {
    if (fields.sequence === undefined) return this.#ask(op, fields, ack);
    if (this.#closed) return Promise.reject(new SowstreamError('closed', 'the connection is closed'));
    if (this.#numbered.size >= NUMBERED_MAX) {
      return Promise.reject(new SowstreamError('disconnected', `${NUMBERED_MAX} commands wait for an answer`));
    }
    return new Promise((resolve, reject) => {
      const id = `r${++this.#number}`;
      const text = this.#written(op, id, fields);
      const { topic } = fields;
      const settle = (done) => (result) => {
        this.#numbered.delete(id);
        this.#attempts.delete(topic);
        done(result);
      };
      const command = { topic, isSent: false, until: Date.now() + this.#settings.publishTimeout, fail: settle(reject) };
      command.send = () => {
        command.isSent = true;
        this.#ask(op, fields, ack, id, undefined, text).then(settle(resolve), (error) => {
          if (!LATER.has(error.reason) || this.#closed) command.fail(error);
          else if (error.reason !== 'disconnected') this.#pause(command, error);
        });
      };
      this.#numbered.set(id, command);
      if (this.#isOpen && !this.#paused.has(topic)) command.send();
    });
  }

  /** Let the numbered commands of a topic wait: a worker drops a number that a higher one overtook. */
  #pause(command, error) {
    const { topic } = command;
    command.isSent = false;
    const all = () => [...this.#numbered.values()].filter((one) => one.topic === topic);
    if (Date.now() > command.until) all().forEach((one) => one.fail(error));
    else if (!this.#paused.has(topic)) {
      const attempt = this.#attempts.get(topic) ?? 0;
      this.#attempts.set(topic, attempt + 1);
      this.#paused.set(topic, setTimeout(() => {
        this.#paused.delete(topic);
        for (const one of all()) if (!one.isSent && this.#isOpen) one.send();
      }, this.#backoff(attempt)));
    }
  }

  #ask(op, fields, ack = undefined, id = `r${++this.#number}`, subscription = undefined, text = undefined) {
    if (!this.#isOpen && op !== 'logon') {
      return Promise.reject(new SowstreamError('disconnected', 'there is no connection now'));
    }
    try {
      text ??= this.#written(op, id, fields);
    } catch (error) {
      return Promise.reject(error);
    }
    return new Promise((resolve, reject) => {
      const last = ack ? ack.split(',').map((one) => one.trim()).at(-1) : undefined;
      const until = op.endsWith('publish') || op === 'sow_delete' ? Infinity : Date.now() + this.#settings.answerTimeout * this.#patience;
      this.#asked.set(id, { resolve, reject, last, subscription, of: subscription?.id, until });
      this.#socket.send(text);
    });
  }

  /** The text of a request; throws if a value cannot be sent, or it is larger than the gateway takes. */
  #written(op, id, fields) {
    if ('data' in fields && fields.data === undefined && op !== 'sow_delete') stringify(undefined);
    const members = Object.entries({ op, id, ...fields }).filter(([, value]) => value !== undefined);
    const text = `{${members.map(([name, value]) => `"${name}":${stringify(value, name === 'data' ? '' : name)}`).join()}}`;
    const limit = this.#messageBytes;
    const bytes = text.length * 3 > limit ? new TextEncoder().encode(text).length : 0;
    if (bytes > limit) throw new SowstreamError('too_large', `the request has ${bytes} bytes, and the gateway takes ${limit}`);
    return text;
  }

  #fail(error) {
    const asked = [...this.#asked.values()];
    this.#asked.clear();
    for (const one of asked) one.reject(error);
  }

  #move(state, detail = undefined) {
    this.#state = state;
    this.#say('state', { state, detail });
  }

  #say(name, fields) { this.dispatchEvent(Object.assign(new Event(name), fields)); }

  /** Full jitter: clients that lost one gateway do not come back at the same moment. */
  #backoff(attempt) {
    const { backoffMin, backoffMax } = this.#settings;
    return Math.random() * Math.min(backoffMax, backoffMin * 2 ** Math.min(attempt, 30));
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
      if (!Socket) throw new SowstreamError('bad_request', 'there is no WebSocket here, as in Node 20: pass one, such as that of the package ws: connect({ url, WebSocket })');
      const url = addressOf(this.#settings.url, '/v1/ws');
      url.protocol = url.protocol.replace('http', 'ws');
      socket = new Socket(url.href, PROTOCOL);
    } catch (error) {
      this.#end(error);
      return;
    }
    this.#socket = socket;
    const lost = (code, reason) => { if (socket === this.#socket) this.#lost(code, reason); };
    this.#limit = setTimeout(lost, this.#settings.openTimeout, 1006, 'the gateway did not answer in time');
    socket.onopen = () => this.#logOn(socket);
    socket.onmessage = (event) => {
      if (socket !== this.#socket) return;
      try {
        this.#hear(event.data);
      } catch (error) { // The rest of the frame is lost: from the bookmarks it comes again.
        this.#say('error', { error });
        this.#lost(1002, `a frame could not be read: ${error.message}`);
      }
    };
    // Browsers close a socket right after an error; Node 20 does not after a refused connection.
    socket.onerror = () => setTimeout(lost, 0, 1006, 'the connection failed');
    socket.onclose = (event) => lost(event.code, event.reason);
  }

  async #logOn(socket) {
    const isStale = () => socket !== this.#socket || this.#closed;
    try {
      const token = await this.#token();
      if (isStale()) return;
      const { message_bytes: limit } = await this.#ask('logon', { token, client: this.#settings.name });
      this.#messageBytes = limit ?? MESSAGE_BYTES;
      if (isStale()) return;
      clearTimeout(this.#limit);
      if (token) this.#refusals = 0;
      this.#isOpen = true;
      this.#openedAt = this.#heard = Date.now();
      this.#renewLater(token);
      this.#watchSilence();
      this.#move('open');
      this.#opened.resolve(this);
      for (const subscription of this.#subscriptions.values()) this.#send(subscription);
      for (const command of [...this.#numbered.values()]) command.send();
    } catch (error) {
      if (isStale() || error.reason === 'disconnected') return;
      // A function may give another token the next time; two that were refused one after the other are an answer.
      if (REFUSED.has(error.reason) && (typeof this.#settings.token !== 'function' || ++this.#refusals > 1)) this.#end(error);
      else {
        this.#say(LATER.has(error.reason) ? 'unavailable' : 'error', { error });
        this.#lost(1006, error.message);
      }
    }
  }

  /** Renew a JSON Web Token before it expires, through the function that gives tokens. */
  #renewLater(token, attempt = 0) {
    clearTimeout(this.#renewal);
    if (typeof this.#settings.token !== 'function' || !token) return;
    const seconds = attempt ? this.#backoff(attempt) / 1000 : this.#settings.renewAfter ?? secondsLeft(token) * RENEW_SHARE;
    if (!Number.isFinite(seconds)) return;
    this.#renewal = setTimeout(async () => {
      const socket = this.#socket;
      try {
        const fresh = await this.#token();
        if (socket !== this.#socket || !this.#isOpen) return;
        await this.#ask('logon', { token: fresh, client: this.#settings.name });
        this.#renewLater(fresh);
      } catch (error) {
        if (socket !== this.#socket || !this.#isOpen) return;
        this.#say(LATER.has(error.reason) ? 'unavailable' : 'error', { error });
        this.#renewLater(token, attempt + 1);
      }
    }, Math.min(Math.max(seconds, 0.05) * 1000, 2 ** 31 - 1));
  }

  /** A connection on which nothing comes, not even the answer to a ping, is lost; so is one that owes an answer for too long. */
  #watchSilence() {
    clearInterval(this.#watch);
    const limit = this.#settings.silence;
    this.#watch = setInterval(() => {
      const now = Date.now();
      const silent = now - this.#heard;
      if (silent > limit * 2) this.#lost(1006, 'nothing came');
      else if ([...this.#asked.values()].some(({ until }) => until < now)) {
        this.#patience = Math.min(this.#patience * 2, PATIENCE_MAX);
        this.#lost(1006, 'a request was not answered in time');
      } else if (silent > limit) this.#ask('ping', {}).catch(() => {});
    }, limit / 2);
    this.#watch.unref?.();
  }

  #lost(code, reason) {
    if (this.#closed) return;
    const { token, backoffMax } = this.#settings;
    this.#disconnect(new SowstreamError('disconnected', reason || 'the connection was lost', { code }));
    if (code === 4403 || (code === 4401 && !token)) {
      this.#end(new SowstreamError(code === 4401 ? 'logon_required' : 'refused', reason, { code }));
      return;
    }
    if (this.#openedAt && Date.now() - this.#openedAt > backoffMax) this.#attempt = 0;
    this.#openedAt = 0;
    const wait = this.#backoff(this.#attempt++);
    this.#move('waiting', { code, reason, wait });
    this.#timer = setTimeout(() => this.#open(), wait);
  }

  /** Drop the socket, and what was asked over it. */
  #disconnect(error) {
    const socket = this.#socket;
    this.#socket = null;
    this.#isOpen = false;
    for (const timer of [this.#timer, this.#limit, this.#renewal, this.#watch, ...this.#paused.values()]) clearTimeout(timer);
    this.#paused.clear();
    try { socket?.close(1000); } catch { /* It is closed. */ }
    for (const subscription of this.#subscriptions.values()) subscription._lost();
    this.#fail(error);
  }

  /** End everything: with an error, or because the user asks for it. */
  #end(error = undefined) {
    if (this.#closed) return;
    this.#closed = true;
    const reason = error ?? new SowstreamError('closed', 'the connection was closed');
    this.#disconnect(reason);
    this.#opened.reject(reason);
    const ending = [...this.#subscriptions.values()];
    this.#subscriptions.clear();
    for (const subscription of ending) subscription._end(error);
    for (const { fail } of [...this.#numbered.values()]) fail(reason);
    if (error) this.#say('error', { error });
    this.#move('closed', error);
  }

  #hear(text) {
    this.#heard = Date.now();
    const tree = parse(text);
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
    if (!asked) {
      // A frame was refused unread: which one is not known.
      if (message.id === '' && message.status === 'failure') this.#fail(new SowstreamError(message.reason, message.detail));
      return;
    }
    if (message.status === 'success' && asked.last && message.ack && message.ack !== asked.last) return;
    this.#asked.delete(message.id);
    if (message.status === 'success') {
      // Now, and not in the promise: its messages may be in the same frame.
      if (asked.subscription?.id === asked.of) asked.subscription?._acknowledged(message);
      if (message.ack) message.duplicate = message.detail === 'duplicate';
      asked.resolve(message);
    } else {
      const { reason, detail, line, column } = message;
      asked.reject(new SowstreamError(reason, detail, { line, column, ack: message }));
    }
  }

  #ended(message) {
    const subscription = this.#subscriptions.get(message.sub);
    if (subscription) this.#failed(subscription, message.sub, new SowstreamError(message.reason, message.detail));
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
  #channel = null; #connection; #onMessage; #hooks; #isCatchingUp = false; #isAccepted = false; #accepts;

  constructor(connection, op, topic, options = {}, onMessage = undefined, hooks = {}) {
    wireOptions(options);
    Object.assign(this, {
      op, topic, options: { ...options }, id: '', bookmark: null, selected: undefined, isAsked: false, isKnown: false, isHeld: false,
      isOver: false, attempts: 0, timer: null, changing: null,
    });
    this.#connection = connection;
    this.#onMessage = onMessage;
    this.#hooks = hooks;
    this.accepted = new Promise((resolve, reject) => { this.#accepts = { resolve, reject }; });
    this.accepted.catch(() => {});
    this._lost();
    if (!onMessage && !hooks.hear) this.#channel = new Channel();
  }

  /** True if its snapshot is complete, and it follows the topic now. */
  get isLive() { return this.#isAccepted && !this.#isCatchingUp && !this.isOver; }

  /** Change the filter or the options in one step. */
  replace(changes) { return this.#connection._replace(this, changes); }

  /** End it. */
  close() { this.#connection._unsubscribe(this); }

  [Symbol.asyncIterator]() {
    if (!this.#channel) throw new SowstreamError('bad_request', 'this subscription calls a function');
    const channel = this.#channel;
    const next = () => {
      if (this.isHeld && channel.items.length < WAITING_MAX / 2) this.#connection._release(this);
      return channel.next();
    };
    return { next, return: () => { this.close(); return channel.return(); } };
  }

  /** The gateway does not serve it now: there is no connection, or it has not answered. */
  _lost() {
    clearTimeout(this.timer);
    this.isAsked = this.#isAccepted = false;
    if (!this._accepts) this._accepted = new Promise((resolve) => { this._accepts = resolve; });
  }

  /** The gateway has accepted it, or a change of it. */
  _acknowledged({ select }) {
    this.selected = select;
    this.#isAccepted = this.isKnown = true;
    this.attempts = 0;
    this._accepts?.();
    this._accepts = null;
    this.#accepts.resolve(this);
  }

  /** Its own part of a message: one that several subscriptions share has the fields of all of them, and is for all. */
  _own(message) {
    if (message.subs.length < 2 || !isObject(message.data)) return message;
    return { ...message, data: project(message.data, this.selected ?? [true, {}]) ?? {} };
  }

  _asked(resumes) {
    this.isAsked = true;
    this.#isCatchingUp = !resumes && this.op.startsWith('sow');
    this.#hooks.asked?.(resumes);
  }

  _settle() {
    this.#hooks.settle?.();
    // A snapshot is as large as the answer to the query; what comes behind it waits in the gateway.
    if (this.#channel?.items.length > WAITING_MAX && this.isLive && this.bookmark) this.#connection._hold(this);
  }
  _count(rows) { this.#hooks.count?.(rows); }

  _hear(message) {
    if (this.#hooks.hear) this.#hooks.hear(message);
    else if (this.#onMessage) {
      try {
        this.#onMessage(message);
      } catch (error) { queueMicrotask(() => { throw error; }); } // The other messages of the frame are not its matter.
    }
    else this.#channel.put(message);
    if (message.command === 'refetch') {
      // Records of the new snapshot may be older than the bookmark: from there, a lost connection cannot go on.
      this.bookmark = null;
      this.#isCatchingUp = true;
    } else if (message.command === 'group_end') {
      this.#isCatchingUp = false;
      if (!LIVE.has(this.op)) this.#connection._unsubscribe(this);
    }
  }

  _end(error = null) {
    if (this.isOver) return;
    this._lost();
    this.isOver = true;
    this._accepts();
    if (error) this.#accepts.reject(error);
    else this.#accepts.resolve(this);
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
    const record = copied(message.data);
    this.#changes.push({ type: had ? 'update' : 'add', key, record, changed: [''], removed: [], message, base: this.#versions.get(key) });
    this.#records.set(key, record);
    this.#versions.set(key, message.version);
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
    const changed = changedPaths(message.data, record);
    merge(record, message.data);
    for (const path of message.removed || []) removeAt(record, path);
    this.#versions.set(key, message.version);
    this.#changes.push({ type: 'update', key, record, changed, removed: message.removed || [], message, base: version });
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
    for (const channel of this.#channels) {
      for (const change of changes) channel.put(change);
      if (channel.items.length > WAITING_MAX) {
        channel.close(new SowstreamError('too_slow', `${WAITING_MAX} changes wait and are not taken`));
        this.#channels.delete(channel);
      }
    }
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
