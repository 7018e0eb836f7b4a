// The queries of the page: completion of fields, the quick search, why no record matches, and groups and totals, which the gateway computes.
import { filterPath, instantOf, isName, KEY, leaves, quoted, shownKind, shownText, typed } from './page-cells.js';
import { element } from './page-record.js';
import { SowstreamError } from './sowstream.js';

const SAMPLE_ROWS = 200;
const SEARCHED_MAX = 50;
const SHOWN_MAX = 8;

/** Let the browser complete fields in an input while they are typed, and Tab take the first one; `fields` gives those that are known. */
export function completeFields(input, list, fields) {
  input.addEventListener('input', () => {
    const [before, after] = [input.value.slice(0, input.selectionEnd), input.value.slice(input.selectionEnd)];
    const typed = /\/[\w/'@.$-]*$/.exec(before)?.[0].toLowerCase();
    const paths = typed ? fields().filter((path) => path.toLowerCase().startsWith(typed) && path.toLowerCase() !== typed) : [];
    list.replaceChildren(...paths.slice(0, SHOWN_MAX).map((path) => element('option', { value: before.slice(0, -typed.length) + path + after }, path)));
  });
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Tab' && !event.shiftKey && list.firstChild) { event.preventDefault(); input.value = list.firstChild.value; }
    if (event.key === 'Tab' || event.key === 'Escape') list.replaceChildren();
  });
  input.addEventListener('blur', () => list.replaceChildren());
}

/** The fields of the first records that match, with the kind of their values: `mixed` for several, undefined for nulls alone. */
export async function sampledFields(connection, topic, filter) {
  const rows = await connection.sow(topic, { filter: filter || undefined, top: SAMPLE_ROWS, orderBy: 'SOW_KEY()' });
  const fields = new Map();
  for (const [path, value] of rows.flatMap(({ data }) => [...leaves(data)])) {
    const [before, kind] = [fields.get(path), value === null ? undefined : shownKind(value)];
    fields.set(path, before && kind && before !== kind ? 'mixed' : before ?? kind);
  }
  return { rows: rows.length, fields };
}

const samples = new WeakMap(); // By connection that of the topic that was searched last.

/** Let the next search look which fields the topic has. */
export const forgetSample = (connection) => samples.delete(connection);

/** The filter of a quick search: the text stands in the key or in one of the fields, in any case. */
export async function searchFilter(connection, topic, filter, search) {
  if (!search) return filter;
  if (samples.get(connection)?.topic !== topic) samples.set(connection, { topic, sample: sampledFields(connection, topic) });
  const { fields } = await samples.get(connection).sample.catch((error) => { forgetSample(connection); throw error; });
  const paths = [...fields].filter(([, kind]) => kind && kind !== 'boolean' && kind !== 'array').map(([path]) => filterPath(path));
  const found = ['SOW_KEY()', ...paths.slice(0, SEARCHED_MAX)].map((path) => `INSTR_I(${path}, ${quoted(search)}) != 0`).join(' OR ');
  return both(filter, `(${found})`);
}

const COMPARISONS = { equals: '=', notEqual: '=', lessThan: '<', lessThanOrEqual: '<=', greaterThan: '>', greaterThanOrEqual: '>=', before: '<', after: '>' };

/** A text of a column's filter in the words of the filter language, by the kind of the column. */
function wanted(kind, type, text) {
  if (kind === 'number' && (type in COMPARISONS || type === 'between')) return shownText(typed(text, 0));
  const value = kind === 'time' ? instantOf(text) : text;
  if (value === undefined) throw new SowstreamError('bad_request', `${text} is no time. Write 2026-11-30, 2026-11-30 14:05 or 2026-11-30 14:05:07.5, with Z or +01:00 if it is not local.`);
  return quoted(value);
}

/** Two filters, of which any may be empty, as one. */
export const both = (one, other) => (one && other ? `(${one}) AND ${other}` : one || other);

/** The filter that the grid's own filters of columns stand for: by path, as AG Grid has them, with the kind of the values. */
export function columnFilter(where) {
  const condition = (path, kind, { type, filter = '', filterTo = '', operator, conditions }) => {
    if (conditions) return `(${conditions.map((one) => condition(path, kind, one)).join(operator === 'OR' ? ' OR ' : ' AND ')})`;
    const not = /^not/.test(type) ? 'NOT ' : ''; // Of a field that is not there, too.
    if (/blank/i.test(type)) return `${path} IS ${not}NULL`;
    if (type === 'true' || type === 'false') return `${path} = ${type.toUpperCase()}`;
    const [field, value] = [kind === 'time' ? `INSTANT(${path})` : path, wanted(kind, type, filter)];
    if (type === 'between') return `${field} BETWEEN ${value} AND ${wanted(kind, type, filterTo)}`;
    if (/contains/i.test(type)) return `${not}INSTR_I(${field}, ${value}) != 0`;
    if (type === 'startsWith' || type === 'endsWith') return `${field} ${type === 'endsWith' ? 'ENDS' : 'BEGINS'} WITH (${value})`;
    return `${not}${field} ${COMPARISONS[type] ?? '='} ${value}`;
  };
  return Object.entries(where).map(([path, one]) => condition(path === KEY ? KEY : filterPath(path), one.kind, one)).join(' AND ');
}

/** Why no record matches a filter: the topic is empty, a field of the filter is in no record, or there is just none. */
export async function hintOf(connection, topic, filter) {
  const sample = await sampledFields(connection, topic).catch(() => undefined);
  if (sample?.rows === 0) return `${topic} has no record.`;
  const known = [...sample?.fields.keys() ?? []].map(filterPath);
  const names = filter.replace(/'[^']*'|"[^"]*"/g, "''").match(/\/[A-Za-z_][\w/]*/g) ?? [];
  const missing = names.find((name) => !known.some((path) => path === name || path.startsWith(`${name}/`)));
  if (!sample || !missing) return 'No record matches the filter.';
  const [nearest] = known.map((path) => [distance(path, missing), path]).sort(([one], [other]) => one - other);
  const mean = nearest && nearest[0] <= Math.max(2, missing.length / 3) ? ` Did you mean ${nearest[1]}?` : '';
  return `No record matches. None of the first ${sample.rows} records has ${missing}.${mean}`;
}

/** The number of characters to insert, delete or replace between two texts. */
function distance(one, other) {
  let line = [...other, ''].map((_, at) => at);
  for (let row = 1; row <= one.length; row += 1) {
    const next = [row];
    for (let at = 1; at <= other.length; at += 1) next[at] = Math.min(next[at - 1] + 1, line[at] + 1, line[at - 1] + (one[row - 1] === other[at - 1] ? 0 : 1));
    line = next;
  }
  return line[other.length];
}

/** The figures that groups can show of each number, in the words of the filter language. */
export const FIGURES = ['SUM', 'AVG', 'MIN', 'MAX'];

/**
 * The options of a subscription to groups of the records that match, or with no path to their totals: the number of
 * records, and one figure of each field that holds numbers.
 */
export async function groupOptions(connection, topic, { filter, paths, figure }) {
  const { fields } = await sampledFields(connection, topic.topic, filter);
  const numbers = [...fields].filter(([path, kind]) => kind === 'number' && !paths.includes(path) && !topic.key.includes(path) && !isName(path));
  const count = fields.has('/count') ? '/records' : '/count';
  const figures = numbers.map(([path]) => `${figure}(${filterPath(path)}) AS ${filterPath(path)}`);
  return { ...(paths.length ? { grouping: paths.map(filterPath) } : {}), projection: [`COUNT(*) AS ${count}`, ...figures].join(', ') };
}

/** The filter of the records of one group. */
export function groupFilter(filter, paths, values) {
  const literal = (value) => (typeof value === 'string' ? `= ${quoted(value)}` : `= ${shownText(value).toUpperCase()}`);
  const conditions = paths.map((path) => `${filterPath(path)} ${values[path] === null || values[path] === undefined ? 'IS NULL' : literal(values[path])}`);
  return [...(filter ? [`(${filter})`] : []), ...conditions].join(' AND ');
}
