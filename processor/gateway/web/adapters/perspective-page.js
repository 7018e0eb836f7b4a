// A page with Perspective: perspective.html#topic=orders&filter=/qty > 10
import './node_modules/@perspective-dev/viewer/dist/cdn/perspective-viewer.js';
import './node_modules/@perspective-dev/viewer-datagrid/dist/cdn/perspective-viewer-datagrid.js';
import perspective from './node_modules/@perspective-dev/client/dist/cdn/perspective.js';
import { connect } from '../sowstream.js';
import { bindTable, schemaOf } from './perspective.js';

const asked = new URLSearchParams(location.hash.slice(1));
const client = await connect({ url: location.href, token: asked.get('token') || undefined });
const view = client.view(asked.get('topic'), { filter: asked.get('filter') || undefined });
await view.ready;
const worker = await perspective.worker();
const table = await worker.table(schemaOf(view.values()), { index: 'sowKey' });
await bindTable(view, table);
await document.getElementById('viewer').load(table);
globalThis.sowstreamGrid = { table, view, client };
