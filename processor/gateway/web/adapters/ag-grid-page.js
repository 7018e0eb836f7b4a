// A page with AG Grid: ag-grid.html#topic=orders&filter=/qty > 10
import { connect } from '../sowstream.js';
import { bindGrid, columnOf, rowId } from './ag-grid.js';

if (!globalThis.agGrid) {
  const text = 'AG Grid is not installed here: run "npm ci --prefix processor/gateway/web/adapters" in the clone of this Sowstream, and load the page again.';
  document.getElementById('grid').textContent = text;
  throw new Error(text);
}
document.body.dataset.agThemeMode = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
const asked = new URLSearchParams(location.hash.slice(1));
const [title] = document.getElementsByTagName('h1');
const client = await connect({ url: new URL('..', location.href).href, token: asked.get('token') || undefined });
const showState = () => { title.textContent = `${asked.get('topic')} ${asked.get('filter') ?? ''} (${client.state})`; };
client.addEventListener('state', showState);
showState();
const view = client.view(asked.get('topic'), { filter: asked.get('filter') || undefined });
await view.ready;
const api = globalThis.agGrid.createGrid(document.getElementById('grid'), {
  columnDefs: [],
  getRowId: rowId,
  rowData: [],
  asyncTransactionWaitMillis: 50,
});
const fields = new Set();
const learn = () => {
  const known = fields.size;
  for (const record of view.values()) for (const field of Object.keys(record)) fields.add(field);
  if (fields.size > known) api.setGridOption('columnDefs', [...fields].map(columnOf));
};
learn();
bindGrid(view, api);
view.addEventListener('change', learn);
globalThis.sowstreamGrid = { api, view, client };
