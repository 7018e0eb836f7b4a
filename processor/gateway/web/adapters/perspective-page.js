// A page with Perspective: perspective.html#topic=orders&filter=/qty > 10
import { isName } from '../page-cells.js';
import { connect } from '../sowstream.js';
import { bindTable } from './perspective.js';

const ROWS_MAX = 200_000;
const DECIMALS_MAX = 8; // Perspective's own are two: 7 is 7.00, and 0.0625 is 0.06.
const say = (text) => { document.getElementById('fault').textContent = text; };

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
  const [topic, filter] = [asked.get('topic'), asked.get('filter') || undefined];
  const first = client.view(topic, { filter, top: 1, orderBy: 'SOW_KEY()' });
  await first.ready;
  first.close();
  if (first.rows > ROWS_MAX) throw new Error(`${first.rows.toLocaleString('en')} records match, and this page holds at most ${ROWS_MAX.toLocaleString('en')}: narrow the filter.`);
  document.title = `${topic} in Perspective`;
  const view = client.view(topic, { filter });
  await view.ready;
  const worker = await perspective.worker();
  const grid = { view, client };
  const viewer = document.getElementById('viewer');
  await viewer.load(worker);
  let made = 0;
  await bindTable(view, (schema) => worker.table(schema, { index: 'sowKey', name: `${topic} ${++made}` }), async (table) => {
    const kinds = await table.schema();
    const numbers = Object.keys(kinds).filter((name) => kinds[name] === 'float');
    const format = (name) => ({ number_format: { minimumFractionDigits: 0, maximumFractionDigits: DECIMALS_MAX, useGrouping: !isName(name) } });
    await viewer.restore({
      table: `${topic} ${made}`,
      columns: await table.columns(),
      columns_config: Object.fromEntries(numbers.map((name) => [name, format(name)])),
      theme: matchMedia('(prefers-color-scheme: dark)').matches ? 'Pro Dark' : 'Pro Light',
    });
    grid.table = table;
  });
  globalThis.sowstreamGrid = grid;
}

start().catch((error) => say(error.message));
