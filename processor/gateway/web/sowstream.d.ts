/** The types of the JavaScript client of the Sowstream gateway. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Record_ = { [name: string]: Json };

export interface Settings {
  /** The gateway's address: `https://host:port`, or of a WebSocket. */
  url: string;
  /** A token, or a function that gives one: it is called for each connection, and before a token expires. */
  token?: string | (() => string | Promise<string>);
  /** The name of this client, under which its sequences count. */
  name?: string;
  /** Least and longest wait before a connection is tried again, milliseconds. */
  backoffMin?: number;
  backoffMax?: number;
  /** A connection on which nothing comes for so long is asked, and given up after twice as long; milliseconds. */
  silence?: number;
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
}

export interface Change {
  type: 'add' | 'update' | 'remove';
  key: string;
  record: Record_;
  /** JSON Pointers of the changed values; `['']` for a whole record. */
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
  reason: string;
  line?: number;
  column?: number;
  code?: number;
}

export class Connection extends EventTarget {
  constructor(settings: Settings);
  readonly opened: Promise<Connection>;
  readonly state: 'connecting' | 'open' | 'waiting' | 'closed';
  publish(topic: string, data: Record_, options?: PublishOptions): Promise<Ack>;
  deltaPublish(topic: string, data: Record_, options?: PublishOptions): Promise<Ack>;
  sowDelete(topic: string, selection: { key?: string; data?: Record_; ack?: string; expectVersion?: number }): Promise<Ack>;
  sow(topic: string, options?: QueryOptions): Promise<Message[]>;
  subscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  deltaSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  sowAndSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  sowAndDeltaSubscribe(topic: string, options?: SubscribeOptions, onMessage?: (message: Message) => void): Subscription;
  view(topic: string, options?: SubscribeOptions): View;
  topics(): Promise<TopicInfo[]>;
  close(): void;
}

export class Subscription implements AsyncIterable<Message> {
  readonly accepted: Promise<Subscription>;
  readonly bookmark: string | null;
  readonly isOver: boolean;
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
