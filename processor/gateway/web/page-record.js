// The page's panel of one record: its fields, its last updates with their senders, and the rows that left the view.
import { formatted, leaves, quoted, shownText, valueAt } from './page-cells.js';

const UPDATES_MAX = 20;
const RECORDS_MAX = 500;
const LEFT_MAX = 50;
const WORDS = { match: 'does not match any more', deleted: 'was deleted', expired: 'expired', entitlement: 'may not be seen any more' };

/** An element with its properties and what it contains. */
export function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Ask the user for a token. */
export function askToken() {
  const token = element('input', { id: 'token', type: 'password', autocomplete: 'off' });
  const form = element('form', { method: 'dialog' }, element('h2', {}, 'Log on'), element('label', {}, 'Token ', token), element('button', {}, 'Connect'));
  const dialog = element('dialog', { id: 'logon', ariaLabel: 'Log on' }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => { dialog.addEventListener('close', () => { dialog.remove(); done(token.value); }); });
}

const clock = (instant) => (instant ? formatted(instant).slice(11, 23) : '');

export class RecordPanel {
  #root; #view = null; #updates = new Map(); #shown = null; #names = [];

  constructor(root) { this.#root = root; }

  /** The key of the record that is shown. */
  get key() { return this.#shown ?? undefined; }

  /** Keep the last updates of the records in view, so that they are there when one of them is opened. */
  remember(changes) {
    for (const { key, type, message, removed } of changes) {
      if (type !== 'update' || !message || key === this.#shown) continue;
      this.#add(key, message, removed);
    }
  }

  #add(key, message, removed) {
    const updates = this.#updates.get(key) ?? [];
    this.#updates.delete(key);
    this.#updates.set(key, updates);
    updates.unshift({ message, removed });
    updates.length = Math.min(updates.length, UPDATES_MAX);
    if (this.#updates.size > RECORDS_MAX) this.#updates.delete(this.#updates.keys().next().value);
  }

  forget() { this.#updates.clear(); this.close(); }

  open(connection, { topic, key: names }, key) {
    this.#view?.close();
    this.#shown = key;
    this.#names = names;
    this.#root.hidden = false;
    const view = connection.view(topic, { filter: `SOW_KEY() = ${quoted(key)}`, timestamp: true });
    this.#view = view;
    const draw = () => { if (this.#view === view) this.#draw(view, key); };
    view.addEventListener('ready', draw);
    view.addEventListener('change', ({ changes }) => {
      for (const { type, message, removed } of changes) if (type === 'update') this.#add(key, message, removed);
      draw();
    });
    view.addEventListener('error', ({ error }) => this.#root.querySelector('[data-part=state]').textContent = error.message);
    draw();
  }

  #draw(view, key) {
    const record = view.get(key);
    this.#root.querySelector('h2').textContent = key;
    const state = record ? `version ${view.version(key)}` : view.rows === undefined && !view.subscription.isLive ? 'is read' : 'There is no such record any more.';
    this.#root.querySelector('[data-part=state]').textContent = state;
    const fields = [...leaves(record ?? {})].map(([path, value]) => element('tr', {}, element('th', {}, path.slice(1)), element('td', {}, formatted(value, { isName: true }))));
    this.#root.querySelector('[data-part=fields]').replaceChildren(...fields);
    const updates = (this.#updates.get(key) ?? []).map(({ message, removed }) => {
      const sets = message.delta ? [...leaves(message.data)].filter(([path]) => !this.#names.includes(path)).map(([path, value]) => `${path.slice(1)} = ${formatted(value, { isName: true })}`) : ['whole record'];
      const sender = [...Object.entries(message.headers ?? {}).map(([name, text]) => `${name}: ${text}`), message.correlation_id ?? ''].filter(Boolean);
      const words = [...sets, ...(removed ?? []).map((path) => `${path.slice(1)} removed`)].join(', ');
      return element('li', {}, element('time', {}, clock(message.timestamp)), element('span', {}, words), ...(sender.length ? [element('small', {}, `from ${sender.join(', ')}`)] : []));
    });
    this.#root.querySelector('[data-part=updates]').replaceChildren(...updates);
  }

  close() {
    this.#view?.close();
    this.#view = this.#shown = null;
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
  list.prepend(element('li', {}, `${new Date().toTimeString().slice(0, 8)} ${key} ${words}`));
  while (list.children.length > LEFT_MAX) list.lastChild.remove();
  return true;
}
