// What the page gives away: the text of a cell, and the records that match as CSV.
import { valueAt } from './page-cells.js';
import { SowstreamError, stringify } from './sowstream.js';

const CSV_ROWS_MAX = 100_000;
const KEPT_MS = 60_000;

/** Copy a text. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { throw new SowstreamError('refused', 'The browser did not let the page copy: it needs https, or localhost.'); }
}

function cell(value) {
  const text = value === undefined || value === null ? '' : typeof value === 'string' ? value : stringify(value);
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Save the records that match as CSV: in the order and the columns of the grid, with values as they are in the topic. */
export async function saveCsv(window, topic, paths) {
  if ((window.total ?? 0) > CSV_ROWS_MAX) {
    const [total, most] = [window.total, CSV_ROWS_MAX].map((number) => number.toLocaleString('en'));
    throw new SowstreamError('too_many', `${total} records match, and a CSV has at most ${most}: narrow the filter, or use "sowstream sow".`);
  }
  const rows = await window.readAll();
  const lines = rows.map(({ sow_key: key, data }) => paths.map((path) => cell(path.startsWith('/') ? valueAt(data, path) : key)).join(','));
  const head = paths.map((path) => cell(path.startsWith('/') ? path.slice(1) : 'key')).join(',');
  const link = Object.assign(document.createElement('a'), { download: `${topic}.csv` });
  link.href = URL.createObjectURL(new Blob([`${[head, ...lines].join('\r\n')}\r\n`], { type: 'text/csv' }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}
