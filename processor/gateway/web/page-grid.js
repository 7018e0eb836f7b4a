// The grids of the page, by AG Grid Community: the one of a topic over a live window, which fills the places in sight, and the operators' one.
import { decimalsOf, filterPath, formatted, instantOf, isName, KEY, kindOf, leaves, moveOf, shownKind, shownText, typed } from './page-cells.js';
import { clock, element } from './page-record.js';

const BLOCK_ROWS = 500;
const FIELDS_MAX = 200;
const REST = 4; // Drawing takes a quarter of the time at most …
const FOLDED_MS = 100; // … and no more often than rows come that the gateway folds …
const REST_MAX_MS = 500; // … but a busy machine, on which it seems to take long, still sees its rows.
const ASK_MS = 5000;
const conditions = (...filterOptions) => ({ filterOptions: [...filterOptions, 'blank', 'notBlank'], maxNumConditions: 2, buttons: ['reset'] });
const condition = (displayKey, displayName, numberOfInputs) => ({ displayKey, displayName, numberOfInputs, predicate: () => true });
const between = condition('between', 'Between', 2);
/** What the filter of a column offers, by the kind of its values; the gateway evaluates it. */
const CONDITIONS = {
  number: conditions('equals', 'notEqual', 'lessThan', 'lessThanOrEqual', 'greaterThan', 'greaterThanOrEqual', between),
  time: { ...conditions(condition('before', 'Before', 1), condition('after', 'After', 1), between, 'equals', 'notEqual'), filterPlaceholder: '2026-11-30 14:05' },
  boolean: conditions(condition('true', 'True', 0), condition('false', 'False', 0)),
  text: conditions('contains', 'notContains', 'equals', 'notEqual', 'startsWith', 'endsWith'),
};
/** The columns of the operators' grid: the name, the share of the width, and the value of a partition as `sowstream status` has it. */
const STATUS = [
  ['topic', 4, ({ name }) => name],
  ['partition', 3, ({ partition }) => partition],
  // A worker's own name has a UUID at its end.
  ['worker', 5, ({ owner, fence }) => (owner ? owner.instance ?? owner.client_id.replace(/-[0-9a-f]{32}$/, '') : fence ? 'none: fence' : 'no worker')],
  ['offset', 3, ({ offset }) => offset],
  ['lag', 2, (part) => part.lag_records ?? part.lag],
  ['held', 5, ({ held }) => held?.reason],
  ['since', 6, ({ held }) => held && formatted(held.since.replace(/\.\d+/, ''))],
  ['what to do', 8, ({ held }) => held?.to_do],
];

/** A row of the grid: a record, its values and their texts by path, and where numbers went. */
function rowOf({ key, record, version = 0 }) {
  const data = { key, record, version, values: { [KEY]: key }, texts: { [KEY]: key }, moves: {} };
  for (const [path, value] of leaves(record)) [data.values[path], data.texts[path]] = [value, shownText(value)];
  return data;
}
/** Filters of columns whose times are changed as the function says; one that it does not know stays as it is. */
const withTimes = (where, change) => Object.fromEntries(Object.entries(where).map(([path, one]) => [path, one.kind !== 'time' ? one
  : JSON.parse(JSON.stringify(one, (name, value) => (/^filter(To)?$/.test(name) && value && change(value)) || value))]));
const BLANK = Object.freeze(rowOf({ record: {} }));

/** An order by a column, with its words of the filter language. */
const ordered = ({ path, isFalling }) => ({ path, isFalling, text: `${path === KEY ? KEY : filterPath(path)}${isFalling ? ' DESC' : ''}` });

/** A grid with the looks of the page, which page.css has. */
const gridOf = (element, options) => globalThis.agGrid.createGrid(element, { rowHeight: 28, headerHeight: 32, animateRows: false, ...options });

export class Grid {
  #topic = null; #fields = new Map(); #painted = new Map(); #calls; #isDue = false; #layout = []; #order = []; #isPaused = false; #isNew = false; #learnt = null; #restsUntil = 0; #rest = 0; #query = null;

  /** The live window of the query; null before the first one. */
  window = null;

  /**
   * @param {HTMLElement} element
   * @param {{order: Function, where: Function, layout: Function, edit: Function, refused: Function, open: Function, copied: Function}} calls called when the
   *   user sorts, filters a column, arranges columns, edits a cell, types a value of another kind, opens a record, copies
   */
  constructor(element, calls) {
    this.#calls = calls;
    const arranged = ({ source, finished = true }) => { if (finished && !source.startsWith('grid')) calls.layout(this.layout); };
    /** AG Grid's own. */
    this.api = gridOf(element, {
      rowModelType: 'infinite', cacheBlockSize: BLOCK_ROWS, maxBlocksInCache: 20, infiniteInitialRowCount: 0,
      datasource: { getRows: ({ startRow, endRow, successCallback }) => successCallback(Array(endRow - startRow).fill(BLANK)) },
      defaultColDef: { sortable: true, resizable: true, suppressHeaderMenuButton: true, cellDataType: false, minWidth: 50, enableCellChangeFlash: true },
      readOnlyEdit: true, invalidEditValueMode: 'block', stopEditingWhenCellsLoseFocus: true, maintainColumnOrder: true,
      cellFlashDuration: 700, cellFadeDuration: 500, tooltipShowDelay: 600, suppressNoRowsOverlay: true,
      onViewportChanged: () => this.#look(),
      onModelUpdated: () => this.draw(),
      onSortChanged: ({ source }) => { if (source === 'uiColumnSorted') calls.order(this.#sorted()); },
      onFilterChanged: ({ source }) => {
        if (source === 'api') return;
        calls.layout(this.layout); // A link with a filter of a column has that column in its place.
        const where = Object.entries(this.api.getFilterModel()).map(([path, one]) => [path, { ...one, kind: this.#fields.get(path)?.kind }]);
        calls.where(withTimes(Object.fromEntries(where), instantOf)); // A link is opened in other zones, too.
      },
      onColumnMoved: arranged, onColumnResized: arranged, onColumnPinned: arranged, onColumnVisible: arranged,
      onCellEditRequest: ({ data, colDef: { colId: path }, newValue, oldValue }) => {
        const text = newValue ?? '';
        if (text !== (oldValue ?? '')) calls.edit({ key: data.key, path, text, held: data.values[path], version: data.version });
      },
      onCellEditingStopped: () => { calls.refused(''); this.draw(); },
      tabToNextCell: ({ editing, nextCellPosition }) => editing && (nextCellPosition ?? false), // Else Tab leaves the grid, whose cells are a million.
      onCellKeyDown: (event) => this.#pressed(event),
      onCellClicked: ({ data }) => { if (data?.key !== undefined) calls.open(data.key, false); },
      onCellDoubleClicked: ({ data, column, node }) => { if (data?.key !== undefined && !column.isCellEditable(node)) calls.open(data.key, true); },
    });
  }

  /** The fields that were seen, as JSON Pointers. */
  get fields() { return [...this.#fields.keys()]; }

  /** The order as the user sorted: `{path, isFalling, text}`, the first one first. */
  #sorted() {
    const sorted = this.api.getColumnState().filter(({ sort }) => sort).sort((one, other) => one.sortIndex - other.sortIndex);
    return sorted.map(({ colId, sort }) => ordered({ path: colId, isFalling: sort === 'desc' }));
  }

  /** The columns as the user has arranged them: `{path, isHidden, isPinned, width}`. */
  get layout() { return this.api.getColumnState().map(({ colId, hide, pinned, width }) => ({ path: colId, isHidden: Boolean(hide), isPinned: Boolean(pinned), width })); }

  /** The paths of the visible columns, from the left. */
  get shownPaths() { return this.api.getAllDisplayedColumns().map((column) => column.getColId()); }

  /** Go back to the cell that was selected last. */
  focus() {
    const cell = this.api.getFocusedCell();
    if (cell) this.api.setFocusedCell(cell.rowIndex, cell.column, cell.rowPinned);
  }

  /** Show another topic. The window is made from the order, by the function. */
  begin(topic, { order = [], layout = [], where = {} }, open) {
    this.window?.close();
    [this.#topic, this.#layout, this.#order] = [topic, layout, order];
    this.#fields.clear();
    this.#painted.clear();
    this.api.setGridOption('columnDefs', []);
    for (const path of [...layout.map((one) => one.path), ...Object.keys(where)]) if (path !== KEY) this.#learn(path, null, where[path]?.kind);
    this.#define();
    this.api.setFilterModel(withTimes(where, formatted));
    this.api.setRowCount(0, true);
    this.window = open(order.map(ordered));
  }

  /** True if the rows in sight are those of the window, and the window is that of the query. */
  get isSettled() { return Boolean(this.window?.isSettled) && !this.#isDue; }

  /** Show totals below the rows; none: undefined. */
  total(record) {
    const row = record && rowOf({ record });
    if (row) row.values[this.#topic.key[0]] = 'total';
    this.api.setGridOption('pinnedBottomRowData', row ? [row] : []);
  }

  pause(isPaused) { this.#isPaused = isPaused; this.draw(); }

  /** Draw the rows in sight before the next frame; while drawing takes long, only so often that the page has time for the user. */
  draw() {
    if (this.#isDue) return;
    this.#isDue = true;
    const next = (now) => {
      this.#isDue = false;
      if (!this.#isPaused && this.window) this.#paint();
      this.#restsUntil = now + Math.max(this.window?.isFolded ? FOLDED_MS : 0, Math.min(REST * (performance.now() - now), REST_MAX_MS));
    };
    const rest = this.#restsUntil - performance.now();
    if (rest > 0) this.#rest = setTimeout(requestAnimationFrame, rest, next); // Each frame that is asked for costs, also an empty one.
    else requestAnimationFrame(next);
  }

  #look() {
    clearTimeout(this.#rest); // What scrolls into sight does not wait.
    [this.#restsUntil, this.#isDue] = [0, false];
    const [first, last] = [this.api.getFirstDisplayedRowIndex(), this.api.getLastDisplayedRowIndex()];
    if (this.window && last >= first && first >= 0) this.window.show(first, last);
    this.draw();
  }

  #paint() {
    const { first, rows, total, query } = this.window;
    if (this.api.getEditingCells().length) return; // No row moves away below an edit.
    if (this.#learnt !== rows) for (const row of rows) this.learn(row.record);
    this.#learnt = rows;
    if (this.#isNew) this.#define();
    if (total !== undefined && this.api.getDisplayedRowCount() !== total) this.api.setRowCount(total, true);
    // Another query begins at its first row, unless the user has scrolled since it was asked.
    if (this.#query !== query && first === 0 && total) this.api.ensureIndexVisible(0, 'top');
    this.#query = query;
    const from = Math.max(0, this.api.getFirstDisplayedRowIndex());
    const to = this.api.getLastDisplayedRowIndex();
    for (const [at, node] of this.#painted) {
      if (at >= from && at <= to) continue;
      node.setData(BLANK); // What is not in sight is not kept up to date.
      this.#painted.delete(at);
    }
    const [rowNodes, columns] = [[], new Set()];
    for (let at = from; at <= to; at += 1) {
      const node = this.api.getDisplayedRowAtIndex(at);
      if (!node?.data) continue; // Its block comes, and this is called again.
      if (this.#fill(node, rows[at - first], columns)) rowNodes.push(node);
      this.#painted.set(at, node);
    }
    if (columns.size) this.api.refreshCells({ rowNodes, columns: [...columns] }); // No other cell is touched; those that changed flash.
  }

  /** Fill a place. Returns true if its row was there before and has changed: in the columns that are added, which are not drawn yet. */
  #fill(node, row, columns) {
    const before = node.data;
    if (!row) { if (before !== BLANK) node.setData(BLANK); return false; }
    const { record, version } = this.window.newest(row);
    const isSame = before.key === row.key;
    if (isSame && before.record === record && before.version === version) return false;
    const data = rowOf({ key: row.key, record, version });
    if (!isSame) { node.setData(data); return false; }
    for (const path of this.#fields.keys()) {
      const [had, has] = [before.values[path], data.values[path]];
      if (before.texts[path] === data.texts[path] && kindOf(had) === kindOf(has)) continue;
      before.moves[path] = moveOf(had, has); // Of the others those of before: a cell that still flashes keeps its arrow.
      columns.add(path);
    }
    Object.assign(before, data, { moves: before.moves });
    return true;
  }

  /** Learn the fields of a record: their kinds, and how much room they need. */
  learn(record) {
    for (const [path, value] of leaves(record)) this.#learn(path, value);
    if (this.#isNew) this.draw();
  }

  #learn(path, value, known) {
    let field = this.#fields.get(path);
    if (!field) {
      if (this.#fields.size >= FIELDS_MAX) return;
      this.#fields.set(path, field = { kind: known, decimals: 0, length: 0 });
      this.#isNew = true;
    }
    if (value === undefined || value === null) return;
    const kind = shownKind(value);
    if (!field.kind) { field.kind = kind; this.#isNew = true; }
    const text = shownText(value);
    const decimals = kind === 'number' ? decimalsOf(text) : 0;
    field.length = Math.max(field.length, text.length + text.replace(/[^A-Z]/g, '').length / 4); // Capitals are wider.
    if (decimals <= field.decimals) return;
    field.decimals = decimals; // The points of the column stand further to the left.
    if (!this.#isNew) this.api.refreshCells({ columns: [path], force: true, suppressFlash: true });
  }

  /** Define the columns: those of the layout as it says, then the others as they appeared. */
  #define() {
    this.#isNew = false;
    const { key } = this.#topic;
    const names = [KEY, ...this.#fields.keys()];
    const arranged = new Map(this.#layout.filter(({ path }) => names.includes(path)).map((one) => [one.path, one]));
    const isKeyShown = !this.#topic.isGrouped && key.length !== 1;
    const defined = new Set((this.api.getColumnDefs() ?? []).map(({ colId }) => colId));
    this.api.setGridOption('columnDefs', [...new Set([...arranged.keys(), ...names])].map((path) => {
      const column = this.#column(path);
      if (defined.has(path)) return column;
      const { isHidden, isPinned, width } = arranged.get(path) ?? {
        isHidden: path === KEY && !isKeyShown, isPinned: isKeyShown ? path === KEY : key.includes(path),
      };
      const place = this.#order.findIndex((one) => one.path === path);
      return {
        ...column,
        initialHide: isHidden,
        initialPinned: isPinned ? 'left' : null,
        initialWidth: width ?? firstWidth(path, this.#fields.get(path)),
        ...(place < 0 ? {} : { initialSort: this.#order[place].isFalling ? 'desc' : 'asc', initialSortIndex: place }),
      };
    }));
  }

  #column(path) {
    const field = this.#fields.get(path);
    const isNamed = path === KEY || this.#topic.key.includes(path) || isName(path);
    const isNumber = field?.kind === 'number';
    return {
      colId: path,
      headerName: path === KEY ? 'key' : path.slice(1),
      headerTooltip: path === KEY ? 'The key of the record' : path,
      headerClass: isNumber ? 'ag-right-aligned-header' : undefined,
      filter: !this.#topic.isGrouped && field?.kind !== 'array' && 'agTextColumnFilter',
      filterParams: CONDITIONS[field?.kind] ?? CONDITIONS.text,
      valueGetter: ({ data }) => (data?.values[path] === null ? null : data?.texts[path]),
      valueFormatter: ({ data }) => (data ? formatted(data.values[path], { isName: isNamed, decimals: this.#fields.get(path)?.decimals }) : ''),
      tooltipValueGetter: ({ data }) => (shownKind(data?.values[path]) === 'time' || data?.texts[path]?.length > 24 ? data.texts[path] : undefined),
      cellClass: ({ data }) => [`kind-${shownKind(data?.values[path])}`, isNumber ? 'ag-right-aligned-cell' : ''],
      cellClassRules: { up: ({ data }) => data?.moves[path] === 'up', down: ({ data }) => data?.moves[path] === 'down' },
      editable: ({ data }) => path !== KEY && this.#topic.publish && !this.#topic.key.includes(path) && data?.key !== undefined,
      cellEditorParams: ({ data }) => ({ getValidationErrors: ({ value }) => {
        try { typed(value ?? '', data.values[path]); return null; } catch (error) { this.#calls.refused(error.message); return [error.message]; }
      } }),
    };
  }

  #pressed({ data, column, event }) {
    const isCommand = event.ctrlKey || event.metaKey;
    if (data?.key === undefined || this.api.getEditingCells().length) return;
    if (event.key === ' ' && !isCommand) { event.preventDefault(); this.#calls.open(data.key, true); }
    else if (isCommand && event.key.toLowerCase() === 'c' && !String(getSelection())) this.#calls.copied(data.texts[column.getColId()] ?? '');
  }
}

/** The first width of a column in pixels: room for its name, and for the values that were seen. */
function firstWidth(path, { kind, length = 8, decimals = 0 } = {}) {
  const room = kind === 'time' ? 23 : kind === 'number' ? length * 1.25 + Math.min(decimals, 8) + 2 : length; // Totals are longer.
  const most = matchMedia('(max-width: 600px)').matches ? 150 : 280;
  return Math.min(most, Math.max(60, Math.round(7.5 * Math.max(path.length + 1, room) + 28)));
}

/** The operators' tab: what `sowstream status` shows, asked for again every few seconds while it is open. Returns a function that opens or closes it. */
export function statusTab(root, ask) {
  const part = (name) => root.querySelector(`[data-part=${name}]`);
  let [api, timer] = [null, 0];
  async function follow() {
    try {
      const status = await ask();
      api ??= gridOf(part('partitions'), {
        columnDefs: STATUS.map(([headerName, flex, value]) => {
          const valueGetter = ({ data }) => value(data);
          const isText = headerName === 'what to do'; // A command to be read as a whole.
          return { headerName, flex, valueGetter, tooltipValueGetter: valueGetter, wrapText: isText, autoHeight: isText, type: ['partition', 'offset', 'lag'].includes(headerName) ? 'rightAligned' : [] };
        }),
        getRowId: ({ data }) => `${data.name} ${data.partition}`,
      });
      const rowData = status.pipelines.flatMap(({ name, fence, partitions }) => partitions.map((part) => ({ name, fence, ...part })));
      const held = rowData.filter((row) => row.held).length;
      api.setGridOption('rowData', rowData);
      part('summary').textContent = `${status.application_id}: ${status.is_well ? 'nothing is held' : `${held} ${held === 1 ? 'partition' : 'partitions'} held`}, at ${clock()}`;
      part('notes').replaceChildren(...status.notes.map((note) => element('li', {}, note)));
    } catch (error) { part('summary').textContent = error.message; }
    if (!root.hidden) timer = setTimeout(follow, ASK_MS);
  }
  return (isShown) => {
    root.hidden = !isShown;
    clearTimeout(timer);
    if (isShown) follow();
  };
}
