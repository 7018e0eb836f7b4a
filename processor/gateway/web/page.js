// The page of the gateway: a live grid over any topic.
import { filterPath, kindOf, leaves, nested, shownText, typed, valueAt } from './page-cells.js';
import { Connection, SowstreamError } from './sowstream.js';

const ROW_PX = 28;
const HEIGHT_MAX_PX = 8_000_000;
const SPARE_ROWS = 10;
const SCROLL_MS = 50;
const LEFT_MAX = 50;
const FIELDS_MAX = 200;
const ORDER_MS = 200;
const PING_MS = 2000;
const LIFE_MS = 5000;
const TRIES_MAX = 5;

const $ = (id) => document.getElementById(id);
const state = {
  connection: null, view: null, topics: [], topic: null, fields: new Map(), shown: new Set(), paused: false,
  first: 0, wanted: 0, top: 40, scrollTop: 0, order: new Map(), isOrdering: false, isOutOfOrder: false, edits: 0, updates: 0, cell: { row: 0, column: 0 }, editing: false, flashes: new Map(), token: undefined,
  lags: [], drawn: false,
};

/** The rows in the gateway's order; one that it has not placed yet stands behind the others. */
function ordered(view) {
  const place = (key) => state.order.get(key) ?? Infinity;
  return [...view].map(([key, record]) => ({ key, record })).sort((a, b) => place(a.key) - place(b.key) || 0);
}

/** Ask for the order of the rows. The gateway alone knows it: it compares every digit, and values that are texts here. */
async function reorder() {
  state.isOutOfOrder = true;
  if (state.isOrdering) return;
  state.isOrdering = true;
  while (state.isOutOfOrder && state.connection.state === 'open') {
    state.isOutOfOrder = false;
    const { view } = state;
    const { filter, orderBy, top, skip } = view.subscription.options;
    try {
      const rows = await state.connection.sow(view.topic, { filter: filter || undefined, orderBy, top, skip, select: '-/' });
      if (state.view === view) { state.order = new Map(rows.map((row, at) => [row.sow_key, at])); draw(); }
    } catch { state.isOutOfOrder ||= state.connection.state === 'open' && !view.subscription.isOver; }
    await new Promise((done) => setTimeout(done, ORDER_MS));
  }
  state.isOrdering = false;
}

function message(text) { $('fault').textContent = text; }

/** The text of an error; the caret of a filter's error stands below its place. */
function describe(error) { return error instanceof SowstreamError ? error.message : String(error); }

function openConnection() {
  state.connection?.close();
  state.connection = new Connection({ url: new URL('.', location.href).href, token: () => state.token, name: 'page' });
  state.connection.addEventListener('state', (event) => {
    showState(event.state);
    if (event.state === 'open' && state.view) reorder();
  });
}

function showState(name) {
  const text = { open: 'connected', silent: 'no sign of life', waiting: 'connection lost, trying again' }[name] || name;
  if ($('state').textContent !== text) $('state').textContent = text;
  $('state').dataset.state = name;
}

/** Show the age of the last message; a gateway from which none came is asked for one. */
let isAsking = false;
function showLife() {
  const { connection } = state;
  if (!connection?.heardAt) return;
  const age = Date.now() - connection.heardAt;
  const isGone = age > LIFE_MS;
  $('age').textContent = `${Math.floor(age / 1000)} s`;
  document.body.dataset.life = isGone ? 'gone' : 'there';
  if (connection.state === 'open') showState(isGone ? 'silent' : 'open');
  if (age > PING_MS && !isAsking) {
    isAsking = true;
    connection.ping().catch(() => {}).then(() => { isAsking = false; showLife(); });
  }
}

async function start() {
  openConnection();
  for (;;) {
    try {
      state.topics = (await state.connection.topics()).filter((topic) => topic.read);
      break;
    } catch (error) {
      if (error.reason === 'refused' || /token/.test(error.message)) {
        await logOn();
        openConnection(); // One whose token was refused has ended.
      }
      else { message(describe(error)); await new Promise((done) => setTimeout(done, 2000)); }
    }
  }
  $('topic').replaceChildren(...state.topics.map(({ topic }) => new Option(topic, topic)));
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has('topic')) $('topic').value = asked.get('topic');
  if (asked.has('filter')) $('filter').value = asked.get('filter');
  choose();
}

function logOn() {
  return new Promise((done) => {
    $('logon').addEventListener('close', () => { state.token = $('token').value; $('token').value = ''; done(); }, { once: true });
    $('logon').showModal();
  });
}

function choose() {
  state.topic = state.topics.find(({ topic }) => topic === $('topic').value) || null;
  state.fields.clear();
  state.shown.clear();
  $('sort').replaceChildren(new Option('key', ''));
  $('choices').replaceChildren();
  open();
}

function query() {
  const path = $('sort').value;
  return {
    filter: $('filter').value.trim() || undefined,
    orderBy: `${path ? filterPath(path) : 'SOW_KEY()'}${$('direction').value}`,
    top: state.top,
    skip: state.first,
    timestamp: true,
  };
}

function open() {
  state.view?.close();
  state.first = state.wanted = 0;
  state.drawn = false;
  state.order = new Map();
  $('scroller').scrollTop = state.scrollTop = 0;
  $('left').replaceChildren();
  message('');
  if (!state.topic) { message('There is no topic that you may read.'); return; }
  measure();
  const view = state.connection.view(state.topic.topic, query());
  state.view = view;
  view.addEventListener('change', (event) => { if (state.view === view) changed(event.changes); });
  view.addEventListener('rows', draw);
  view.addEventListener('ready', () => { if (state.view === view) reorder(); draw(); });
  view.addEventListener('error', (event) => message(describe(event.error)));
  view.ready.catch((error) => message(describe(error)));
}

async function apply() {
  history.replaceState(null, '', `#${new URLSearchParams({ topic: $('topic').value, filter: $('filter').value })}`);
  if (!state.view || state.view.subscription.isOver) { open(); return; }
  message('');
  state.first = state.wanted = 0;
  $('scroller').scrollTop = state.scrollTop = 0;
  try {
    const { filter = '', orderBy, top, skip } = query();
    await state.view.replace({ filter, orderBy, top, skip });
    reorder();
  } catch (error) { message(describe(error)); }
}

function changed(changes) {
  const path = $('sort').value;
  const moves = (one) => path && (one === path || one === '' || path.startsWith(`${one}/`) || one.startsWith(`${path}/`));
  for (const change of changes) {
    if (change.type !== 'update' || [...change.changed, ...change.removed].some(moves)) state.isOutOfOrder = true;
    state.updates += 1;
    const sent = change.message?.timestamp;
    if (sent) state.lags.push(Date.now() - Date.parse(sent));
    if (change.type === 'remove') left(change);
    else {
      if (change.type === 'update') state.flashes.set(change.key, { paths: change.changed, at: performance.now() });
      for (const [field] of leaves(change.record)) learn(field);
    }
  }
  if (state.isOutOfOrder) reorder();
  draw();
}

function learn(path) {
  if (state.fields.has(path) || state.fields.size >= FIELDS_MAX) return;
  state.fields.set(path, true);
  state.shown.add(path);
  $('sort').append(new Option(path.slice(1), path));
  const box = Object.assign(document.createElement('input'), { type: 'checkbox', checked: true });
  box.addEventListener('change', () => { box.checked ? state.shown.add(path) : state.shown.delete(path); draw(); });
  const label = document.createElement('label');
  label.append(box, path.slice(1));
  $('choices').append(label);
}

function left(change) {
  if (change.reason === 'match' && !$('filter').value.trim()) return; // It left the window, not the query.
  const item = document.createElement('li');
  item.textContent = `${change.key}: ${change.reason}`;
  $('left').prepend(item);
  while ($('left').children.length > LEFT_MAX) $('left').lastChild.remove();
}

let isDrawing = false;
function draw() {
  if (isDrawing || state.paused) return;
  isDrawing = true;
  requestAnimationFrame(() => { isDrawing = false; if (!state.paused && state.view) render(); });
}

function render() {
  const { view } = state;
  if ($('body').querySelector('input')) return; // No row moves away below an edit.
  const columns = [...state.fields.keys()].filter((path) => state.shown.has(path));
  const rows = ordered(view);
  const total = Math.max(view.rows ?? 0, rows.length);
  $('rows').textContent = total.toLocaleString('en');
  $('grid').setAttribute('aria-rowcount', String(total + 1));
  $('grid').setAttribute('aria-colcount', String(columns.length + 1));
  $('spacer').style.height = `${Math.min(HEIGHT_MAX_PX, (total + 1) * ROW_PX)}px`;
  fill($('head'), columns.length + 1, 'th', (cell, at) => {
    cell.setAttribute('role', 'columnheader');
    cell.scope = 'col';
    const text = at ? columns[at - 1].slice(1) : 'key';
    if (cell.textContent !== text) cell.textContent = text;
    const value = at && rows.length ? valueAt(rows[0].record, columns[at - 1]) : undefined;
    cell.className = kindOf(value) === 'number' ? 'number' : '';
  });
  const now = performance.now();
  fill($('body'), rows.length, 'tr', (line, number) => {
    const { key, record } = rows[number];
    line.setAttribute('role', 'row');
    line.setAttribute('aria-rowindex', String(state.first + number + 2));
    const isOther = line.dataset.key !== key;
    line.dataset.key = key;
    const flash = state.flashes.get(key);
    fill(line, columns.length + 1, 'td', (cell, at) => {
      cell.setAttribute('role', at ? 'gridcell' : 'rowheader');
      const value = at ? valueAt(record, columns[at - 1]) : key;
      const text = shownText(value);
      cell.tabIndex = number === state.cell.row && at === state.cell.column ? 0 : -1;
      if (cell.textContent !== text) {
        cell.textContent = text;
        cell.className = kindOf(value) === 'number' ? 'number' : '';
        if (at && !isOther && flash && now - flash.at < 1000) {
          void cell.offsetWidth; // Begins the animation again.
          cell.classList.add('flash');
        } else cell.classList.remove('flash');
      }
    });
  });
  for (const [key, flash] of state.flashes) if (now - flash.at > 1000) state.flashes.delete(key);
  state.drawn = true;
}

function fill(parent, count, tag, each) {
  while (parent.children.length > count) parent.lastChild.remove();
  while (parent.children.length < count) parent.append(document.createElement(tag));
  for (let at = 0; at < count; at += 1) each(parent.children[at], at);
}

function measure() { state.top = Math.ceil($('scroller').clientHeight / ROW_PX) + SPARE_ROWS; }

const shownRows = () => Math.floor($('scroller').clientHeight / ROW_PX) - 1; // Below the names of the columns.
const lastFirst = () => Math.max(0, (state.view?.rows ?? 0) - shownRows());
const way = () => $('scroller').scrollHeight - $('scroller').clientHeight;

/** The window follows the scroll bar. */
function scrolled() {
  const { scrollTop } = $('scroller');
  if (scrollTop === state.scrollTop) return;
  state.scrollTop = scrollTop;
  show(Math.min(lastFirst(), Math.round((way() > 0 ? scrollTop / way() : 0) * lastFirst())));
}

/** Move the window by some rows: of a million rows the scroll bar alone passes over many with each pixel. */
function moveBy(rows) {
  const first = Math.min(Math.max(state.wanted + rows, 0), lastFirst());
  $('scroller').scrollTop = lastFirst() ? (first / lastFirst()) * way() : 0;
  state.scrollTop = $('scroller').scrollTop;
  show(first);
}

let scrolling = null;
function show(first) {
  state.wanted = first;
  scrolling ??= setTimeout(async () => {
    scrolling = null;
    const { view, wanted } = state;
    if (!view || view.rows === undefined || wanted === state.first) return;
    state.first = wanted;
    try { await view.replace({ skip: wanted }); reorder(); } catch (error) { message(describe(error)); }
  }, SCROLL_MS);
}

function moveTo(row, column) {
  const lines = $('body').children;
  if (!lines.length) return;
  state.cell = { row: Math.min(Math.max(row, 0), lines.length - 1), column: Math.min(Math.max(column, 0), lines[0].children.length - 1) };
  for (const cell of $('body').querySelectorAll('[tabindex="0"]')) cell.tabIndex = -1;
  const cell = lines[state.cell.row].children[state.cell.column];
  cell.tabIndex = 0;
  cell.focus({ preventScroll: true });
}

function edit(cell) {
  const column = [...cell.parentNode.children].indexOf(cell);
  const path = [...state.fields.keys()].filter((one) => state.shown.has(one))[column - 1];
  if (!column || !state.topic.publish || state.topic.key.includes(path)) return;
  const { key } = cell.parentNode.dataset;
  const held = valueAt(state.view.get(key), path);
  const version = state.view.version(key);
  const input = Object.assign(document.createElement('input'), { value: shownText(held) });
  input.setAttribute('aria-label', `${path.slice(1)} of ${key}`);
  let isOver = false;
  const end = (isKept) => {
    if (isOver) return;
    isOver = true;
    const text = input.value;
    input.remove();
    cell.textContent = shownText(valueAt(state.view.get(key) || {}, path));
    cell.focus();
    if (isKept && text !== shownText(held)) save(key, path, text, held, version);
    draw();
  };
  input.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter') end(true);
    else if (event.key === 'Escape') end(false);
  });
  input.addEventListener('blur', () => end(false));
  cell.replaceChildren(input);
  input.select();
}

/** Write one field of a record that is there: with its version, so that one which was deleted meanwhile stays so. */
async function save(key, path, text, held, version) {
  try {
    const data = nested(path, typed(text, held));
    for (let expected = version, tries = 1; ; tries += 1) {
      try {
        await state.connection.publish(state.topic.topic, data, { allowMerge: true, key, expectVersion: expected, ack: 'processed' });
        break;
      } catch (error) {
        expected = error.ack?.version;
        if (error.reason !== 'conflict' || tries === TRIES_MAX) throw error;
        if (!expected) throw new SowstreamError('conflict', 'The record was deleted meanwhile.');
      }
    }
    message('');
    state.edits += 1;
  } catch (error) { message(`The change was not made. ${describe(error)}`); }
}

$('query').addEventListener('submit', (event) => { event.preventDefault(); apply(); });
$('topic').addEventListener('change', choose);
$('sort').addEventListener('change', apply);
$('direction').addEventListener('change', apply);
$('scroller').addEventListener('scroll', scrolled, { passive: true });
$('scroller').addEventListener('wheel', (event) => {
  if (event.ctrlKey || Math.abs(event.deltaY) < Math.abs(event.deltaX) || (state.view?.rows ?? 0) * ROW_PX < HEIGHT_MAX_PX) return;
  event.preventDefault();
  moveBy(Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / (event.deltaMode ? 1 : ROW_PX))));
}, { passive: false });
new ResizeObserver(() => {
  const before = state.top;
  measure();
  if (state.view && state.top > before) state.view.replace({ top: state.top }).then(draw, () => {});
}).observe($('scroller'));
$('pause').addEventListener('click', () => {
  state.paused = !state.paused;
  $('pause').setAttribute('aria-pressed', String(state.paused));
  $('pause').textContent = state.paused ? 'Go on' : 'Pause';
  draw();
});
$('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const isDark = (root.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  root.dataset.theme = isDark ? 'light' : 'dark';
  $('theme').setAttribute('aria-pressed', String(!isDark));
});
$('body').addEventListener('dblclick', (event) => { const cell = event.target.closest('td'); if (cell) edit(cell); });
$('body').addEventListener('click', (event) => {
  const cell = event.target.closest('td');
  if (cell && !cell.firstElementChild) moveTo([...$('body').children].indexOf(cell.parentNode), [...cell.parentNode.children].indexOf(cell));
});
$('grid').addEventListener('keydown', (event) => {
  const cell = event.target.closest('td');
  if (!cell) return;
  const { row, column } = state.cell;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9] };
  if (event.key in steps) {
    const last = Math.min($('body').children.length, shownRows()) - 1;
    if (event.key === 'ArrowDown' && row >= last) moveBy(1);
    else if (event.key === 'ArrowUp' && row === 0) moveBy(-1);
    else moveTo(row + steps[event.key][0], column + steps[event.key][1]);
  } else if (event.key === 'PageDown') moveBy(shownRows());
  else if (event.key === 'PageUp') moveBy(-shownRows());
  else if (event.key === 'Enter' || event.key === 'F2') edit(cell);
  else return;
  event.preventDefault();
});
setInterval(() => {
  showLife();
  $('rate').textContent = state.updates.toLocaleString('en');
  state.updates = 0;
  const { lags } = state;
  lags.sort((a, b) => a - b);
  $('lag').textContent = lags.length ? `${Math.max(0, lags[lags.length >> 1]).toLocaleString('en')} ms` : '–';
  state.lags = [];
}, 1000);
window.sowstreamPage = state;
start();
