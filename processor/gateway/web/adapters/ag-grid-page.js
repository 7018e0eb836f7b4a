// A page with AG Grid: ag-grid.html#topic=orders&filter=/qty > 10
import { connect } from '../sowstream.js';
import { bindGrid, rowId } from './ag-grid.js';

const asked = new URLSearchParams(location.hash.slice(1));
const client = await connect({ url: location.href, token: asked.get('token') || undefined });
const view = client.view(asked.get('topic'), { filter: asked.get('filter') || undefined });
await view.ready;
const fields = new Set([...view.values()].flatMap((record) => Object.keys(record)));
const api = globalThis.agGrid.createGrid(document.getElementById('grid'), {
  columnDefs: [...fields].map((field) => ({ field, filter: true, enableCellChangeFlash: true })),
  getRowId: rowId,
  rowData: [],
  asyncTransactionWaitMillis: 50,
});
bindGrid(view, api);
globalThis.sowstreamGrid = { api, view, client };
