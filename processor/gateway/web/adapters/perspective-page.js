// A page with Perspective: perspective.html#topic=orders&filter=/qty > 10&order=-/qty
import { isName } from '../page-cells.js';
import { readLink } from '../page-link.js';
import { connect } from '../sowstream.js';
import { bindTable } from './perspective.js';

const ROWS_MAX = 200_000;
const DECIMALS_MAX = 8; // Perspective's own are two: 7 is 7.00, and 0.0625 is 0.06.
const show = (id, text) => { document.getElementById(id).textContent = text; };

async function library() {
  try {
    await import('./node_modules/@perspective-dev/viewer/dist/cdn/perspective-viewer.js');
    await import('./node_modules/@perspective-dev/viewer-datagrid/dist/cdn/perspective-viewer-datagrid.js');
    await import('./node_modules/@perspective-dev/viewer-d3fc/dist/cdn/perspective-viewer-d3fc.js');
    return (await import('./node_modules/@perspective-dev/client/dist/cdn/perspective.js')).default;
  } catch (error) {
    throw new Error(`Perspective is not installed here: run "npm ci --prefix processor/gateway/web/adapters" in the clone of this Sowstream, and load the page again. ${error.message}`);
  }
}

async function start() {
  const perspective = await library();
  const asked = new URLSearchParams(location.hash.slice(1));
  const token = asked.get('token') || globalThis.opener?.sowstreamPage?.token || undefined;
  const client = await connect({ url: new URL('..', location.href).href, token });
  const { topic, order, ...link } = readLink(location.hash);
  const filter = link.filter || undefined;
  show('topic', topic);
  show('query', filter ?? '');
  document.title = `${topic}: Analyse`;
  const first = client.view(topic, { filter, top: 1, orderBy: 'SOW_KEY()' });
  await first.ready;
  first.close();
  if (first.rows > ROWS_MAX) throw new Error(`${first.rows.toLocaleString('en')} records match, and this page holds at most ${ROWS_MAX.toLocaleString('en')}: narrow the filter.`);
  const keys = (await client.topics()).find((one) => one.topic === topic)?.key ?? [];
  const view = client.view(topic, { filter });
  await view.ready;
  const showState = () => show('state', client.state === 'open' ? `${view.size.toLocaleString('en')} ${view.size === 1 ? 'record' : 'records'}` : 'connection lost, trying again');
  for (const source of [client, view]) for (const event of ['state', 'change']) source.addEventListener(event, showState);
  showState();
  const worker = await perspective.worker();
  const grid = { view, client };
  // Not before the head has its height: a viewer that is resized before its first table never draws.
  const viewer = document.createElement('perspective-viewer');
  document.querySelector('main').append(viewer);
  await viewer.load(worker);
  let [made, isSorted] = [0, false];
  await bindTable(view, (schema) => worker.table(schema, { index: 'sowKey', name: `${topic} ${++made}` }), async (table) => {
    const [kinds, columns] = [await table.schema(), await table.columns()];
    const isColumn = (path) => columns.includes(path.slice(1));
    const sorts = [...order, ...keys.map((path) => ({ path }))].filter(({ path }) => isColumn(path)).map(({ path, isFalling }) => [path.slice(1), isFalling ? 'desc' : 'asc']);
    const hasKeys = keys.length > 0 && keys.every(isColumn); // Else the key is in no other column.
    const numbers = Object.keys(kinds).filter((name) => kinds[name] === 'float');
    const format = (name) => ({ number_format: { minimumFractionDigits: 0, maximumFractionDigits: DECIMALS_MAX, useGrouping: !isName(name) } });
    await viewer.restore({
      table: `${topic} ${made}`,
      columns: hasKeys ? columns.filter((name) => name !== 'sowKey') : columns,
      ...(isSorted ? {} : { sort: sorts.length ? sorts : [['sowKey', 'asc']] }),
      columns_config: Object.fromEntries(numbers.map((name) => [name, format(name)])),
      theme: matchMedia('(prefers-color-scheme: dark)').matches ? 'Pro Dark' : 'Pro Light',
    });
    isSorted = sorts.length > 0; // From now on as the user likes.
    grid.table = table;
  });
  globalThis.sowstreamGrid = grid;
}

start().catch((error) => show('fault', error.message));
