// Binds a view of the Sowstream client to a Perspective table with the index `sowKey`.

/**
 * Keep a table equal to a view's records.
 * @param {import('../sowstream.js').View} view
 * @param {object} table Perspective's table
 * @returns {Promise<() => void>} ends the binding; the rows stay
 */
export async function bindTable(view, table) {
  const columns = new Set(await table.columns());
  const row = (key) => {
    const data = { sowKey: key };
    for (const [name, value] of Object.entries(view.get(key))) {
      if (columns.has(name)) data[name] = value !== null && typeof value === 'object' ? JSON.stringify(value) : value;
    }
    // A field that is gone is empty: Perspective keeps what an update leaves out.
    for (const name of columns) if (!(name in data)) data[name] = null;
    return data;
  };
  let last = Promise.resolve();
  const change = ({ changes }) => {
    const keys = [...new Set(changes.map(({ key }) => key))];
    const there = keys.filter((key) => view.has(key)).map(row);
    const gone = keys.filter((key) => !view.has(key));
    last = last.then(async () => {
      if (there.length) await table.update(there);
      if (gone.length) await table.remove(gone);
    });
  };
  view.addEventListener('change', change);
  await table.update([...view.keys()].map(row));
  return () => view.removeEventListener('change', change);
}

/** The schema of a table for some records, by the types of their values. */
export function schemaOf(records) {
  const schema = { sowKey: 'string' };
  for (const record of records) {
    for (const [name, value] of Object.entries(record)) {
      const type = typeof value === 'number' ? 'float' : typeof value === 'boolean' ? 'boolean' : 'string';
      schema[name] = schema[name] && schema[name] !== type ? 'string' : type;
    }
  }
  return schema;
}
