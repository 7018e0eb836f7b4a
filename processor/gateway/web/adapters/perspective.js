// Binds a view of the Sowstream client to Perspective: a table with the index `sowKey`, and columns as fields appear.
import { stringify } from '../sowstream.js';

/**
 * Keep a table equal to a view's records. Columns of Perspective cannot change: with a new field, or a value of another
 * kind, another table takes the place of the last one.
 * @param {import('../sowstream.js').View} view
 * @param {(schema: object) => Promise<object>} create makes a table, such as `(schema) => worker.table(schema, { index: 'sowKey' })`
 * @param {(table: object) => Promise<void>} show called with each table, such as `(table) => viewer.load(table)`
 * @returns {Promise<() => void>} ends the binding; the rows stay
 */
export async function bindTable(view, create, show) {
  const columns = new Map([['sowKey', 'string']]);
  let table = null;
  let last = Promise.resolve();
  const row = (key) => {
    const record = view.get(key);
    // A field that is gone is empty: Perspective keeps what an update leaves out.
    const cells = [...columns].slice(1).map(([name, type]) => [name, cell(Object.hasOwn(record, name) ? record[name] : null, type)]);
    return Object.fromEntries([['sowKey', key], ...cells]);
  };
  const follow = async (keys) => {
    const there = keys.filter((key) => view.has(key));
    const gone = keys.filter((key) => !view.has(key));
    const isNew = there.map((key) => learn(columns, view.get(key))).some(Boolean);
    if (isNew || !table) {
      const [before, next] = [table, await create(Object.fromEntries(columns))];
      await next.update([...view.keys()].map(row));
      await show(next);
      table = next;
      // Not waited for: while somebody's own call on the table goes on, Perspective's promise never ends.
      before?.delete({ lazy: true }).catch((error) => console.error(error));
    } else {
      if (there.length) await table.update(there.map(row));
      if (gone.length) await table.remove(gone);
    }
  };
  const change = ({ changes }) => {
    const keys = [...new Set(changes.map(({ key }) => key))];
    last = last.then(() => follow(keys)).catch((error) => console.error(error));
  };
  view.addEventListener('change', change);
  last = follow([...view.keys()]);
  await last;
  return () => view.removeEventListener('change', change);
}

/** Learn the fields of a record, and the kinds of their values; returns whether there is a new one. */
function learn(columns, record) {
  let isNew = false;
  for (const [name, value] of Object.entries(record)) {
    if (value === null || name === 'sowKey') continue; // Null is of any kind.
    const kind = { number: 'float', boolean: 'boolean' }[typeof value] || 'string'; // Texts hold every digit.
    const known = columns.get(name);
    if (known === kind || known === 'string') continue;
    columns.set(name, known ? 'string' : kind);
    isNew = true;
  }
  return isNew;
}

/** A value as a cell of a column. */
function cell(value, type) {
  return value === null || type !== 'string' || typeof value === 'string' ? value : stringify(value);
}
