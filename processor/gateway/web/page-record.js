// One record of the page: the panel with its fields and its last updates, the edits of its fields, and rows that left the view.
import { formatted, kindOf, leaves, nested, quoted, shownText, typed, valueAt } from './page-cells.js';
import { SowstreamError, stringify } from './sowstream.js';

const UPDATES_MAX = 20;
const RECORDS_MAX = 500;
const LEFT_MAX = 50;
const TRIES_MAX = 5;
const READ_AGAIN_MS = 100;
const WORDS = { match: 'does not match any more', deleted: 'was deleted', expired: 'expired', entitlement: 'may not be seen any more' };

export const $ = (id) => document.getElementById(id);

/** An element with its properties and what it contains. */
export function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** A button that is pressed or not; it calls with its new state, and returns a function that sets it. */
export function toggle(button, pressed) {
  const press = (isPressed) => { button.ariaPressed = String(isPressed); pressed(isPressed); };
  button.addEventListener('click', () => press(button.ariaPressed !== 'true'));
  return press;
}

/** Ask the user in a dialog: the text of its field, or undefined where it was closed without its button. */
export function askText(id, title, button, label) {
  const form = element('form', { method: 'dialog' }, element('h2', {}, title), label, element('button', { value: 'done' }, button), ' ', element('button', {}, 'Cancel'));
  const dialog = element('dialog', { id, ariaLabel: title }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => { dialog.addEventListener('close', () => { dialog.remove(); done(dialog.returnValue ? label.control.value : undefined); }); });
}

/** Ask the user for a token. */
export const askToken = () => askText('logon', 'Log on', 'Connect', element('label', {}, 'Token ', element('input', { id: 'token', type: 'password', autocomplete: 'off' })));

/** The time of day of an instant. */
export const clock = (instant = Date.now()) => new Date(instant).toTimeString().slice(0, 8);

/** The SVG of a small line through numbers, the oldest one first; empty if they do not move. */
export function sparkline(numbers) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (!(high - low > 0 && Number.isFinite(high - low))) return '';
  const points = numbers.map((number, at) => `${Math.round(60 * at / (numbers.length - 1))},${Math.round(15 - 14 * (number - low) / (high - low))}`);
  return `<svg viewBox="0 0 60 16" role="img" aria-label="its last ${numbers.length} values, from ${low} to ${high}"><polyline points="${points.join(' ')}"/></svg>`;
}

export class RecordPanel {
  #root; #view = null; #updates = new Map();

  constructor(root) { this.#root = root; }

  /** The key of the record that is shown. */
  key;

  /** Its version, as it is shown. */
  get version() { return this.#view?.version(this.key); }

  /** Keep the last updates of the records in view, so that they are there when one of them is opened. */
  remember(changes) { for (const change of changes) if (change.key !== this.key) this.#add(change); }

  #add({ key, type, message, removed }) {
    if (type !== 'update' || !message) return;
    const updates = [{ message, removed }, ...this.#updates.get(key) ?? []].slice(0, UPDATES_MAX);
    this.#updates.delete(key);
    this.#updates.set(key, updates);
    if (this.#updates.size > RECORDS_MAX) this.#updates.delete(this.#updates.keys().next().value);
  }

  forget() { this.#updates.clear(); this.close(); }

  open(connection, topic, key) {
    this.close();
    this.key = key;
    this.#root.hidden = false;
    const view = this.#view = connection.view(topic.topic, { filter: `SOW_KEY() = ${quoted(key)}`, timestamp: true });
    const draw = () => { if (this.#view === view) this.#draw(view, topic.key); };
    view.addEventListener('ready', draw);
    view.addEventListener('change', ({ changes }) => { for (const change of changes) this.#add(change); draw(); });
    view.addEventListener('error', ({ error }) => this.#show('state', error.message));
    draw();
  }

  #show(part, ...content) { this.#root.querySelector(`[data-part=${part}]`).replaceChildren(...content); }

  #draw(view, names) {
    const record = view.get(this.key);
    const isRead = view.rows !== undefined || view.subscription.isLive;
    const text = (value) => formatted(value, { isName: true });
    this.#show('key', this.key);
    $('delete').disabled = this.version === undefined; // Nobody deletes what he has not seen.
    this.#show('state', record ? `version ${view.version(this.key)}` : isRead ? 'There is no such record any more.' : 'is read');
    const updates = this.#updates.get(this.key) ?? [];
    const history = (path) => updates.map(({ message }) => valueAt(message.data, path)).filter((value) => kindOf(value) === 'number').map(Number).reverse();
    this.#show('fields', ...[...leaves(record ?? {})].map(([path, value]) => element('tr', {}, element('th', {}, path.slice(1)), element('td', {}, text(value)), element('td', { innerHTML: sparkline(history(path)) }))));
    this.#root.querySelector('h3').hidden = !updates.length;
    this.#show('updates', ...updates.map(({ message, removed }) => {
      const sets = message.delta ? [...leaves(message.data)].filter(([path]) => !names.includes(path)).map(([path, value]) => `${path.slice(1)} = ${text(value)}`) : ['whole record'];
      const sender = [...Object.entries(message.headers ?? {}).map(([name, value]) => `${name}: ${value}`), message.correlation_id ?? ''].filter(Boolean);
      const words = [...sets, ...(removed ?? []).map((path) => `${path.slice(1)} removed`)].join(', ');
      const time = element('time', {}, message.timestamp ? formatted(message.timestamp).slice(11, 23) : '');
      return element('li', {}, time, element('span', {}, words), ...(sender.length ? [element('small', {}, `from ${sender.join(', ')}`)] : []));
    }));
  }

  close() {
    this.#view?.close();
    this.#view = null;
    this.key = undefined;
    this.#root.hidden = true;
  }
}

/** List a row that left the query, and return true; one that only left the window, as others came or it scrolled, is not listed. */
export function listLeft(list, { key, reason, record, last }, { filter, order }) {
  let words = WORDS[reason];
  if (reason === 'match') {
    const isSame = (paths) => paths.every((path) => shownText(valueAt(record, path)) === shownText(valueAt(last, path)));
    if (!filter || !last || isSame([...leaves({ ...record, ...last })].map(([path]) => path))) return false;
    if (!isSame(order.map(({ path }) => path))) words += ', or stands elsewhere';
  } else if (!words) return false;
  list.prepend(element('li', {}, `${clock()} ${key} ${words}`));
  while (list.children.length > LEFT_MAX) list.lastChild.remove();
  return true;
}

const conflict = (text) => new SowstreamError('conflict', text);

/** The edits of the page: each is on the condition of the record's version, and can be undone. */
export class Edits {
  #calls; #undone = [];

  /** @param {{publish: Function, read: Function, changed: Function}} calls publish a delta or a record, remove one, read those of a filter; called with whether there is one to undo */
  constructor(calls) { this.#calls = calls; }

  /** The number of edits that were made. */
  count = 0;

  forget() { this.#keep([]); }

  #keep(edits) { this.#undone = edits; this.#calls.changed(edits.length > 0); }

  /** Write one field of a record that is there: with its version, and only as long as the field has the value `was`. */
  async #write(key, path, value, version, was, tries = TRIES_MAX) {
    try {
      await this.#calls.publish(nested(path, value), { allowMerge: true, key, expectVersion: version, ack: 'processed' });
      this.count += 1;
    } catch (error) {
      if (error.reason !== 'conflict' || tries === 1) throw error;
      if (!error.ack?.version) throw conflict('The record was deleted meanwhile.');
      await this.#write(key, path, value, (await this.#unchanged(key, path, was, error.ack.version)).version, was, tries - 1);
    }
  }

  /** The record as it is now, at the version or later, if the field has the value `was`: another one's is not overwritten. */
  async #unchanged(key, path, was, version = 0) {
    for (let tries = TRIES_MAX; ; tries -= 1) {
      const [row] = await this.#calls.read(`SOW_KEY() = ${quoted(key)}`);
      if (!row) throw conflict('The record was deleted meanwhile.');
      if (stringify([valueAt(row.data, path) ?? null]) !== stringify([was ?? null])) throw conflict(`${path.slice(1)} of ${key} was changed by another one meanwhile.`);
      // The view may be a moment behind the worker.
      if (row.version >= version || tries === 1) return row;
      await new Promise((resolve) => { setTimeout(resolve, READ_AGAIN_MS); });
    }
  }

  /** Write the value that a text stands for, of the kind of the value that the cell holds. */
  async save({ key, path, text, held, version }) {
    const value = typed(text, held);
    await this.#write(key, path, value, version, held);
    this.#keep([...this.#undone, () => this.#writeBack(key, path, value, held)]);
  }

  /** Make a record, if there is none with its key. */
  async make(record) {
    const { version } = await this.#calls.publish(record, { expectVersion: 0, ack: 'processed' });
    this.#keep([...this.#undone, () => this.remove(undefined, version, record)]);
  }

  /** Delete the record of a key, or that of a record's key fields, if it still has its version. */
  async remove(key, expectVersion, data) { await this.#calls.remove({ key, data, expectVersion, ack: 'processed' }); }

  /** Undo the last edit, unless another one has changed the same. */
  async undo() {
    const undo = this.#undone.at(-1);
    this.#keep(this.#undone.slice(0, -1));
    await undo?.();
  }

  async #writeBack(key, path, value, held) {
    const row = await this.#unchanged(key, path, value);
    if (held === undefined) throw conflict(`${path.slice(1)} of ${key} was not there before, and a delta removes no field.`);
    await this.#write(key, path, held, row.version, value);
  }
}
