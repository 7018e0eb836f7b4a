// Groups and totals of the page: the gateway computes them for this page and sends their changes.
import { filterPath, isName, quoted, shownText } from './page-cells.js';
import { sampledFields } from './page-filter.js';

/** The figures that groups can show of each number, in the words of the filter language. */
export const FIGURES = ['SUM', 'AVG', 'MIN', 'MAX'];

/**
 * The options of a subscription to groups of the records that match, or with no path to their totals: the number of
 * records, and one figure of each field that holds numbers.
 */
export async function groupOptions(connection, topic, { filter, paths, figure }) {
  const { fields } = await sampledFields(connection, topic.topic, filter);
  // Names of other letters cannot be written in a projection.
  const numbers = [...fields].filter(([path, kind]) => kind === 'number' && /^[\w/]+$/.test(path) && !paths.includes(path) && !topic.key.includes(path) && !isName(path));
  const count = fields.has('/count') ? '/records' : '/count';
  const figures = numbers.map(([path]) => `${figure}(${filterPath(path)}) AS ${filterPath(path)}`);
  return { ...(paths.length ? { grouping: paths } : {}), projection: [`COUNT(*) AS ${count}`, ...figures].join(', ') };
}

/** Follow the totals of the records that match; `show` gets their row, and what ends it is thrown into `fail`. */
export async function followTotals(connection, topic, { filter, figure }, show, fail) {
  const view = connection.view(topic.topic, { filter: filter || undefined, ...await groupOptions(connection, topic, { filter, paths: [], figure }) });
  const draw = () => show([...view.values()][0] ?? {});
  view.addEventListener('change', draw);
  view.addEventListener('ready', draw);
  view.addEventListener('error', ({ error }) => fail(error));
  return () => view.close();
}

/** The filter of the records of one group. */
export function groupFilter(filter, paths, values) {
  const literal = (value) => (typeof value === 'string' ? `= ${quoted(value)}` : `= ${shownText(value).toUpperCase()}`);
  const conditions = paths.map((path) => `${filterPath(path)} ${values[path] === null || values[path] === undefined ? 'IS NULL' : literal(values[path])}`);
  return [...(filter ? [`(${filter})`] : []), ...conditions].join(' AND ');
}
