// A page with Perspective: perspective.html#topic=orders&filter=/qty > 10
import './node_modules/@perspective-dev/viewer/dist/cdn/perspective-viewer.js';
import './node_modules/@perspective-dev/viewer-datagrid/dist/cdn/perspective-viewer-datagrid.js';
import perspective from './node_modules/@perspective-dev/client/dist/cdn/perspective.js';
import { connect } from '../sowstream.js';
import { bindTable } from './perspective.js';

const asked = new URLSearchParams(location.hash.slice(1));
const client = await connect({ url: new URL('..', location.href).href, token: asked.get('token') || undefined });
const view = client.view(asked.get('topic'), { filter: asked.get('filter') || undefined });
await view.ready;
const worker = await perspective.worker();
const grid = { view, client };
await bindTable(view, (schema) => worker.table(schema, { index: 'sowKey' }), async (table) => {
  await document.getElementById('viewer').load(table);
  await document.getElementById('viewer').restore({ columns: await table.columns() });
  grid.table = table;
});
globalThis.sowstreamGrid = grid;
