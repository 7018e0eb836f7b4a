// The operators' tab of the page: what `sowstream status` shows, asked for again every few seconds while it is open.
import { gridOf } from './page-grid.js';
import { element } from './page-record.js';

const ASK_MS = 5000;
const NUMBERS = new Set(['partition', 'offset', 'lag']);
const WIDTHS = { topic: 4, partition: 3, worker: 6, offset: 3, lag: 2, held: 3, since: 6, 'what to do': 8 };

/** The rows of the table: one for each partition, as `sowstream status` has them. */
export function statusRows({ pipelines }) {
  return pipelines.flatMap(({ name, fence, partitions }) => partitions.map((part) => ({
    topic: name,
    partition: part.partition,
    // A worker's own name has a UUID at its end.
    worker: part.owner ? part.owner.instance ?? part.owner.client_id.replace(/-[0-9a-f]{32}$/, '') : fence ? 'none: fence' : 'no worker',
    offset: part.offset,
    lag: part.lag_records ?? part.lag,
    held: part.held?.reason ?? '',
    since: part.held ? new Date(part.held.since).toLocaleString() : '',
    'what to do': part.held?.to_do ?? '',
  })));
}

export class StatusTab {
  #root; #ask; #api = null; #timer = 0;

  /**
   * @param {HTMLElement} root
   * @param {() => Promise<object>} ask asks for the status
   */
  constructor(root, ask) {
    this.#root = root;
    this.#ask = ask;
  }

  /** Open the tab, and keep it up to date; or close it. */
  show(isShown) {
    this.#root.hidden = !isShown;
    clearTimeout(this.#timer);
    if (isShown) this.#follow();
  }

  async #follow() {
    const part = (name) => this.#root.querySelector(`[data-part=${name}]`);
    try {
      const status = await this.#ask();
      this.#api ??= gridOf(part('partitions'), {
        columnDefs: Object.entries(WIDTHS).map(([field, flex]) => ({ field, headerName: field, flex, tooltipField: field, type: NUMBERS.has(field) ? 'rightAligned' : undefined })),
        getRowId: ({ data }) => `${data.topic} ${data.partition}`,
      });
      this.#api.setGridOption('rowData', statusRows(status));
      const held = status.pipelines.flatMap(({ partitions }) => partitions).filter((one) => one.held).length;
      part('summary').textContent = `${status.application_id}: ${status.is_well ? 'nothing is held' : `${held} partitions are held`}, at ${new Date().toTimeString().slice(0, 8)}`;
      part('notes').replaceChildren(...status.notes.map((note) => element('li', {}, note)));
    } catch (error) { part('summary').textContent = error.message; }
    if (!this.#root.hidden) this.#timer = setTimeout(() => this.#follow(), ASK_MS);
  }
}
