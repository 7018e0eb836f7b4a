// The values of the page's cells: where they are in a record, how they are shown and saved as CSV, and the values that texts stand for.
import { Decimal, parse, SowstreamError, stringify } from './sowstream.js';

const DECIMALS_MAX = 8;
const INSTANT = /^(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d)?([.,]\d+)?(Z|[+-]\d\d(?::?\d\d)?)$/i;
const TYPED_TIME = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?([.,]\d+)?)? ?(Z|[+-]\d\d(?::?\d\d)?)?$/i;
const PLAIN_NUMBER = /^(-?)(\d+)(\.\d+)?$/;
const GROUPED_NUMBER = /^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/;
const FORMULA = /^(?:[=@\t\r]|[-+].*[^-+\d.,:()/ ])/s; // A spreadsheet would compute such a text; of digits alone it is a number.
const FIGURE_SPACE = '\u2007'; // As wide as a digit.
const POINT_SPACE = '\u2008'; // As wide as a decimal point.
const LOCAL_MINUTE = new Intl.DateTimeFormat('sv', { dateStyle: 'short', timeStyle: 'short' }); // As ISO 8601 has it.
const CSV_ROWS_MAX = 100_000;
const KEPT_MS = 60_000;
/** The column of the key, and the order by it. */
export const KEY = 'SOW_KEY()';

/** True for a field whose numbers are names: they have no groups of three, and no sum. */
export const isName = (path) => /(^|[_/])ids?$|Id$/.test(path);

export const isObject = (value) => kindOf(value) === 'object';

/** The kind of a value, as JSON has them. */
export function kindOf(value) {
  if (typeof value === 'bigint' || value instanceof Decimal) return 'number';
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

/** The kind of a value as the page shows it: an ISO 8601 instant is a time. */
export const shownKind = (value) => (typeof value === 'string' && INSTANT.test(value) ? 'time' : kindOf(value));

/** The fields of a record as JSON Pointers, objects gone through. */
export function* leaves(record, prefix = '') {
  for (const [name, value] of Object.entries(record)) {
    const path = `${prefix}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    if (isObject(value)) yield* leaves(value, path);
    else yield [path, value];
  }
}

const parts = (path) => path.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
export const valueAt = (record, path) => parts(path).reduce((value, name) => (isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined), record);
export const nested = (path, value) => parts(path).reduceRight((inner, name) => ({ [name]: inner }), value);
export const filterPath = (path) => '/' + parts(path).map((part) => (/^\w+$/.test(part) ? part : quoted(part))).join('/');
export const quoted = (text) => `'${text.replace(/[\\']/g, '\\$&')}'`;
export const shownText = (value) => (value === undefined || value === null ? '' : typeof value === 'string' ? value : stringify(value));

/** `up` for a number that rose, `down` for one that fell; undefined for all else. */
export function moveOf(before, now) {
  if (kindOf(before) !== 'number' || kindOf(now) !== 'number') return undefined;
  return [, 'up', 'down'].at(Math.sign(new Decimal(shownText(now)).compare(shownText(before))));
}

/** The digits behind the point of a number that is written without an exponent; 0 for all else. */
export const decimalsOf = (text) => Math.max(0, (PLAIN_NUMBER.exec(text)?.[3] ?? '').length - 1);

/**
 * The text of a cell: numbers with each digit, in groups of three and with their points below each other; instants in local time.
 * @param {*} value
 * @param {{isName?: boolean, decimals?: number}} column a number that names its record has no groups
 */
export function formatted(value, { isName = false, decimals = 0 } = {}) {
  const kind = shownKind(value);
  const text = shownText(value);
  if (kind === 'null') return 'null';
  if (kind === 'time') return localTime(text);
  const number = kind === 'number' && PLAIN_NUMBER.exec(text);
  if (!number || isName) return text;
  const [, sign, whole, fraction = ''] = number;
  const missing = Math.max(0, Math.min(decimals, DECIMALS_MAX) - Math.max(0, fraction.length - 1));
  const room = (fraction || !missing ? '' : POINT_SPACE) + FIGURE_SPACE.repeat(missing);
  const first = whole.length % 3 || 3;
  return `${sign}${[whole.slice(0, first), ...whole.slice(first).match(/\d{3}/g) ?? []].join()}${fraction}${room}`;
}

function localTime(text) {
  const [, minute, seconds = '', fraction = '', zone] = INSTANT.exec(text);
  const at = new Date(minute + zone); // Each zone of today is whole minutes off.
  return Number.isNaN(at.getTime()) ? text : `${LOCAL_MINUTE.format(at)}${seconds}${fraction}`;
}

/** The instant, in UTC, that a text stands for, which is in local time unless it names a zone; undefined if it is none. */
export function instantOf(text) {
  const [, day, minute = '00:00', seconds = '', fraction = '', zone = ''] = TYPED_TIME.exec(text.trim()) ?? [];
  const at = new Date(`${day}T${minute}${seconds}${zone.toUpperCase()}`);
  const isDay = new Date(`${day}T00:00Z`).getUTCDate() === Number(day?.slice(8)); // 30 February would be 2 March.
  return isDay && !Number.isNaN(at.getTime()) ? `${at.toISOString().slice(0, 19)}${fraction}Z` : undefined;
}

/** The value that a text stands for, of the kind of the value that it is to replace. */
export function typed(text, held) {
  const kind = kindOf(held);
  if (kind === 'string') return text;
  let value;
  try { value = parse(text); } catch { /* A text. */ }
  if (kind === 'null' || kind === 'undefined') return value === undefined ? text : value;
  if (kindOf(value) === kind) return value;
  const hint = kind === 'boolean' ? ' Write true or false.' : kind === 'number' && GROUPED_NUMBER.test(text) ? ` Write ${text.replaceAll(',', '')}.` : '';
  throw new SowstreamError('bad_request', `The field holds ${kind === 'array' ? 'an' : 'a'} ${kind}, and ${text || 'nothing'} is none.${hint}`);
}

/** A cell of CSV. A text that a spreadsheet takes for a formula begins with an apostrophe: it came from a publisher. */
export function csvCell(value) {
  const text = typeof value === 'string' && FORMULA.test(value) ? `'${value}` : shownText(value);
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Save the records that match as CSV: in the order and the columns of the grid, with values as they are in the topic, formulas apart. */
export async function saveCsv(window, topic, paths) {
  const [total, most] = [window.total ?? 0, CSV_ROWS_MAX].map((number) => number.toLocaleString('en'));
  if (window.total > CSV_ROWS_MAX) throw new SowstreamError('too_many', `${total} records match, and a CSV has at most ${most}: narrow the filter, or use "sowstream sow".`);
  const head = paths.map((path) => (path === KEY ? 'key' : path.slice(1)));
  const rows = (await window.readAll()).map(({ sow_key: key, data }) => paths.map((path) => (path === KEY ? key : valueAt(data, path))));
  const lines = [head, ...rows].map((values) => `${values.map(csvCell).join(',')}\r\n`);
  const href = URL.createObjectURL(new Blob(lines, { type: 'text/csv' }));
  Object.assign(document.createElement('a'), { href, download: `${topic}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(href), KEPT_MS);
}
