/** The types of the JavaScript client of the Sowstream gateway. */

/** A value of a record. An integer beyond 53 bits is a bigint, another number that JavaScript does not hold a Decimal. */
export type Json = null | boolean | number | bigint | Decimal | string | Json[] | { [name: string]: Json };
export type Record_ = { [name: string]: Json };

/** A number that JavaScript does not hold, such as 0.1234567890123456789: it prints and is sent with its digits. */
export class Decimal {
  /** Throws a SowstreamError if the text is no number of JSON. */
  constructor(text: string);
  readonly text: string;
  /** Negative, 0 or positive, as it is below, equal to or above another number of any type; NaN beside what is none. */
  compare(other: number | bigint | Decimal): number;
  toString(): string;
  toJSON(): string;
  /** In `-`, `*` and `<` the nearest number; in texts, and with `+`, its text. */
  [Symbol.toPrimitive](hint: string): number | string;
}

export interface Settings {
  /**
   * The gateway's address, also below a path of a proxy and with a query: `https://desk.example.com/sow/`. In a browser it may be
   * relative to the page: `.`, `/sow`.
   */
  url: string;
  /** A token, or a function that gives one: it is called for each connection, and before a token expires. */
  token?: string | (() => string | Promise<string>);
  /** The name of this client, under which its sequences count. */
  name?: string;
  /** Least and longest wait before a connection is tried again, milliseconds. */
  backoffMin?: number;
  backoffMax?: number;
  /** A connection on which nothing comes for so long is asked, and given up after twice as long; milliseconds, default 15,000. */
  silence?: number;
  /** An attempt to connect and log on is given up after so many milliseconds, default 15,000; another one follows. */
  openTimeout?: number;
  /** A connection on which a request other than a publish has no answer for so long is given up; milliseconds, default 60,000. */
  answerTimeout?: number;
  /** So long a publish with a `sequence` is sent again that the gateway does not take now; milliseconds, default 300,000. */
  publishTimeout?: number;
  /** Seconds after which a token is renewed; default: four fifths of the life of a JSON Web Token. */
  renewAfter?: number;
  /** The WebSocket class, where there is no global one. */
  WebSocket?: unknown;
}

export interface QueryOptions {
  filter?: string;
  select?: string;
  orderBy?: string;
  top?: number;
  topN?: number;
  skip?: number;
  skipN?: number;
  timestamp?: boolean;
}

export interface SubscribeOptions extends QueryOptions {
  oof?: boolean;
  conflation?: string | number;
  conflationKey?: string[];
  /** With `projection`: paths whose values make a group. */
  grouping?: string[];
  /** The figures of a group, such as `COUNT(*) AS /count, SUM(/qty) AS /qty`. */
  projection?: string;
  noEmpties?: boolean;
  noSowkey?: boolean;
  sendKeys?: boolean;
}

export interface PublishOptions {
  /** Merge the data into the record, instead of replacing it. */
  allowMerge?: boolean;
  /** The acks to wait for: `processed`, `persisted`, or both with a comma. */
  ack?: string;
  key?: string;
  /** Its number, of those of this client: it is sent again after a lost connection, and carried out once. */
  sequence?: number;
  expiration?: number;
  correlationId?: string;
  expectVersion?: number;
}

export interface Message {
  command: 'group_begin' | 'sow' | 'group_end' | 'publish' | 'oof' | 'refetch';
  topic: string;
  subs: string[];
  sow_key?: string;
  data?: Record_;
  delta?: boolean;
  delta_base?: number;
  version?: number;
  timestamp?: string;
  correlation_id?: string;
  reason?: string;
  removed?: string[];
}

export interface Ack {
  op: 'ack';
  id: string;
  status: 'success' | 'failure';
  ack?: string;
  key?: string;
  reason?: string;
  detail?: string;
  /** True if a publish changed nothing: a command with its `sequence` had been taken before. */
  duplicate?: boolean;
  /** The version of the record after the command; of a conflict, the version that it has. */
  version?: number;
}

/** A record as `get` gives it. */
export interface StoredRecord {
  topic: string;
  sow_key: string;
  version: number;
  timestamp: string;
  expires_at?: string;
  data: Record_;
}

export interface Change {
  type: 'add' | 'update' | 'remove';
  key: string;
  record: Record_;
  /** JSON Pointers of the values that changed, so not of the key; `['']` for a whole record. */
  changed: string[];
  removed: string[];
  /** Of a removed record: `match`, `deleted`, `expired`, `entitlement` or `refetch`. */
  reason?: string;
}

export interface TopicInfo {
  topic: string;
  key: string[];
  read: boolean;
  publish: boolean;
  delete: boolean;
  message_type: string;
  ready: boolean;
}

export class SowstreamError extends Error {
  /**
   * One word. `disconnected`, `unavailable` and `too_many` say "not now", all others "no". Of a connection that the gateway
   * refused: `logon_failed`, `logon_required`, `refused`.
   */
  reason: string;
  line?: number;
  column?: number;
  code?: number;
}

/**
 * Events: `state` (`state`, `detail`), `error` (`error`), and `unavailable` (`error`, `wait` in milliseconds, `subscription`):
 * what was asked for is not there yet, and is asked for again.
 */
export class Connection extends EventTarget {
  constructor(settings: Settings);
  readonly opened: Promise<Connection>;
  readonly state: 'connecting' | 'open' | 'waiting' | 'closed';
  /** The time at which anything came from the gateway last, as of `Date.now()`; 0: nothing has come. */
  readonly heardAt: number;
  publish(topic: string, data: Record_, options?: PublishOptions): Promise<Ack>;
  deltaPublish(topic: string, data: Record_, options?: PublishOptions): Promise<Ack>;
  sowDelete(topic: string, selection: { key?: string; data?: Record_; ack?: string; sequence?: number; expectVersion?: number }): Promise<Ack>;
  sow(topic: string, options?: QueryOptions): Promise<Message[]>;
  /** The record of a key, or null; with `minVersion`, the version of an ack, not before the gateway has it. */
  get(topic: string, key: string, options?: { minVersion?: number }): Promise<StoredRecord | null>;
  subscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  deltaSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  sowAndSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  sowAndDeltaSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  view(topic: string, options?: SubscribeOptions): View;
  topics(): Promise<TopicInfo[]>;
  /** The status of the installation, for operators: what `sowstream status --json` prints. */
  status(): Promise<Record<string, unknown>>;
  /** Ask for a sign of life. */
  ping(): Promise<void>;
  close(): void;
}

/**
 * Iterate over it, or give a function. While a slow reader leaves more than 10,000 messages, the gateway keeps the later ones,
 * and of several for a key the last state: the subscription stops, and resumes from its bookmark.
 */
export class Subscription implements AsyncIterable<Message> {
  readonly accepted: Promise<Subscription>;
  readonly bookmark: string | null;
  readonly isOver: boolean;
  /** True if its snapshot is complete, and it follows the topic now; false while it is asked for again. */
  readonly isLive: boolean;
  replace(changes: SubscribeOptions): Promise<unknown>;
  close(): void;
  [Symbol.asyncIterator](): AsyncIterator<Message>;
}

export class View extends EventTarget implements AsyncIterable<Change>, Iterable<[string, Record_]> {
  readonly ready: Promise<View>;
  readonly size: number;
  /** Of a window, the number of records that match, in it or not. */
  readonly rows?: number;
  readonly topic: string;
  readonly subscription: Subscription;
  get(key: string): Record_ | undefined;
  has(key: string): boolean;
  version(key: string): number | undefined;
  keys(): IterableIterator<string>;
  values(): IterableIterator<Record_>;
  entries(): IterableIterator<[string, Record_]>;
  forEach(call: (record: Record_, key: string, view: View) => void): void;
  replace(changes: SubscribeOptions): Promise<unknown>;
  close(): void;
  [Symbol.iterator](): IterableIterator<[string, Record_]>;
  [Symbol.asyncIterator](): AsyncIterator<Change>;
}

export function connect(settings: Settings | string): Promise<Connection>;
export function merge(record: Record_, delta: Record_): Record_;
/** The value of a JSON text, with every digit. */
export function parse(text: string): Json;
/** The JSON text of a value; throws a SowstreamError with the JSON Pointer of a part that JSON does not have. */
export function stringify(value: Json): string;
