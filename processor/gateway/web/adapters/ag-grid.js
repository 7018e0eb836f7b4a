// Binds a view of the Sowstream client to AG Grid Community, with asynchronous transactions.
import { Decimal, stringify } from '../sowstream.js';

/**
 * Keep a grid's rows equal to a view's records; a row is the record with its SOW key as `sowKey`.
 * The grid needs `getRowId: rowId`.
 * @param {import('../sowstream.js').View} view
 * @param {object} api AG Grid's API
 * @returns {() => void} ends the binding; the rows stay
 */
export function bindGrid(view, api) {
  const row = (key, record) => ({ ...record, sowKey: key });
  api.applyTransaction({ add: [...view].map(([key, record]) => row(key, record)) });
  const shown = new Set(view.keys());
  const change = ({ changes }) => {
    // Of several changes of one row in a frame the last one counts: a transaction has each row once.
    const add = new Map();
    const update = new Map();
    const remove = new Map();
    for (const { type, key } of changes) {
      const record = view.get(key);
      add.delete(key);
      update.delete(key);
      remove.delete(key);
      if (record === undefined) {
        if (shown.has(key)) remove.set(key, { sowKey: key });
      } else if (shown.has(key)) update.set(key, row(key, record));
      else if (type !== 'remove') add.set(key, row(key, record));
    }
    for (const key of add.keys()) shown.add(key);
    for (const key of remove.keys()) shown.delete(key);
    api.applyTransactionAsync({ add: [...add.values()], update: [...update.values()], remove: [...remove.values()] });
  };
  view.addEventListener('change', change);
  return () => view.removeEventListener('change', change);
}

/** The id of a row, for AG Grid's option `getRowId`. */
export const rowId = ({ data }) => data.sowKey;

const isNumber = (value) => typeof value === 'number' || typeof value === 'bigint' || value instanceof Decimal;

/** A column definition for a field of records: numbers are shown and sorted with every digit, a dot is a part of its name. */
export const columnOf = (field) => ({
  colId: field,
  headerName: field,
  valueGetter: ({ data }) => data[field],
  valueFormatter: ({ value }) => (value === undefined || value === null ? '' : typeof value === 'string' ? value : stringify(value)),
  comparator: (one, other) => {
    if (isNumber(one) && isNumber(other)) return new Decimal(stringify(one)).compare(other);
    return one === other ? 0 : (one ?? '') > (other ?? '') ? 1 : -1;
  },
  cellClass: ({ value }) => (isNumber(value) ? 'ag-right-aligned-cell' : ''),
  cellDataType: false,
  filter: true,
  enableCellChangeFlash: true,
});
