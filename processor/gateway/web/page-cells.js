// The values of the page's cells: where they are in a record, their texts, and the values that texts stand for.
import { Decimal, parse, SowstreamError, stringify } from './sowstream.js';

export const isObject = (value) => kindOf(value) === 'object';

/** The kind of a value, as JSON has them. */
export function kindOf(value) {
  if (typeof value === 'bigint' || value instanceof Decimal) return 'number';
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

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
export const filterPath = (path) => '/' + parts(path).map((part) => (/^\w+$/.test(part) ? part : `'${part}'`)).join('/');
export const shownText = (value) => (value === undefined || value === null ? '' : typeof value === 'string' ? value : stringify(value));

/** The value that a text stands for, of the kind of the value that it is to replace. */
export function typed(text, held) {
  const kind = kindOf(held);
  if (kind === 'string') return text;
  let value;
  try { value = parse(text); } catch { value = undefined; }
  if (kind === 'null' || kind === 'undefined') return value === undefined ? text : value;
  if (kindOf(value) !== kind) throw new SowstreamError('bad_request', `The field holds ${kind === 'array' ? 'an' : 'a'} ${kind}, and ${text || 'nothing'} is none.`);
  return value;
}
